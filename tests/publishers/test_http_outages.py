"""The publisher for HTTP when servers are unavailable, slow, or several."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers import suspensions
from django_outbox.messages import ACCEPTED, Outcome, OutcomeKind
from django_outbox.relay import Relay
from tests.support.claimed import make_message
from tests.support.http.receiver import Call, MakePublisher, Receiver, Reply
from tests.support.messages import put, rows
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.http.fixtures"]


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind.value if outcome.counted else "set aside" for outcome in outcomes]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no handler of a server outlives it."""
    event = threading.Event()
    yield event
    event.set()


def test_a_server_that_is_down_does_not_hold_up_another_one(
    receiver: Receiver, make_webhooks: MakePublisher, monkeypatch: pytest.MonkeyPatch
):
    # So that no trial is due while the test runs.
    monkeypatch.setattr(suspensions, "FIRST_WAIT", 60.0)
    down = f"http://127.0.0.1:{free_port()}"
    publisher = make_webhooks({"down.*": f"{down}/", "*": receiver.url()})
    batch = [make_message(type=type) for type in ("down.a", "up", "down.b", "up")]
    for _ in range(3):
        outcomes = list(publisher.publish(batch))
        assert kinds(outcomes) == ["set aside", "accepted", "set aside", "accepted"]
        assert outcomes[0].error == f"{down}: connection refused; start the receiver, or correct host and port in url"
        assert outcomes[0].error_class == "http.unavailable"
        assert outcomes[0].retry_after is not None
        assert 0.1 <= outcomes[0].retry_after <= 60.0
        assert not publisher.prepare()
    assert publisher.check() == [outcomes[0].error]


def test_if_all_servers_are_down_it_is_an_outage(make_webhooks: MakePublisher):
    urls = {f"{name}.*": f"http://127.0.0.1:{free_port()}/" for name in ("a", "b")}
    publisher = make_webhooks(urls)
    outcomes = list(publisher.publish([make_message(type="a.x"), make_message(type="b.x")]))
    assert kinds(outcomes) == ["unanswered"] * 2
    assert publisher.prepare() == outcomes[0].error
    assert len(publisher.check()) == 2


def test_a_server_that_is_back_gets_one_message_on_trial_and_then_all(make_webhooks: MakePublisher):
    port = free_port()
    with Receiver() as other:
        publisher = make_webhooks({"a": f"http://127.0.0.1:{port}/", "b": other.url()})
        batch = [make_message(type="a") for _ in range(5)] + [make_message(type="b")]
        assert kinds(list(publisher.publish(batch))) == ["set aside"] * 5 + ["accepted"]
        with Receiver(port=port) as receiver:
            eventually(lambda: publisher.publish(batch) == [ACCEPTED] * 6, "all messages are accepted")
            assert len(receiver.calls) == 5


def test_a_message_that_alone_has_no_response_is_to_blame(make_webhooks: MakePublisher, held: threading.Event):
    def reply(call: Call) -> Reply:
        if call.path == "/poison":
            held.wait(60)
        return Reply()

    with Receiver(reply) as receiver:
        publisher = make_webhooks(receiver.url("/{key}"), timeout=4.0, concurrency=1)
        outcomes = list(publisher.publish([make_message(key="poison"), make_message(key="good")]))
        held.set()
    assert kinds(outcomes) == ["deferred", "accepted"]
    assert outcomes[0].error == f"http://127.0.0.1:{receiver.port}: no response in time"
    assert outcomes[0].error_class == "http.timeout"


def test_a_server_that_hangs_is_an_outage_and_gets_few_requests(make_webhooks: MakePublisher, held: threading.Event):
    def reply(_call: Call) -> Reply:
        held.wait(60)
        return Reply()

    with Receiver(reply) as receiver:
        publisher = make_webhooks(receiver.url(), timeout=0.5, concurrency=2)
        outcomes = list(publisher.publish([make_message() for _ in range(50)]))
        assert kinds(outcomes) == ["unanswered"] * 50
        # The thread that gives up first may begin another one.
        assert len(receiver.calls) <= 3
        held.set()


def test_a_response_that_drips_does_not_last_longer_than_the_timeout(make_webhooks: MakePublisher):
    ended = threading.Event()

    def reply(_call: Call) -> Reply:
        # The status line comes byte by byte, each one in time.
        return Reply(raw=iter(lambda: None if ended.wait(0.05) else b"H", None))

    with Receiver(reply) as receiver:
        began_at = time.monotonic()
        (outcome,) = make_webhooks(receiver.url(), timeout=0.5).publish([make_message()])
        ended.set()
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert outcome.error.endswith("no response in time")
    assert time.monotonic() - began_at < 60


def test_a_server_that_does_not_read_is_an_outage(make_webhooks: MakePublisher):
    with socket.create_server(("127.0.0.1", 0)) as server:
        publisher = make_webhooks(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=0.5)
        (outcome,) = publisher.publish([make_message(payload=b"x" * 20_000_000)])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert outcome.error.endswith("no response in time")


def test_a_resolver_that_hangs_does_not_hang_the_relay(
    make_webhooks: MakePublisher, held: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: held.wait(20) and [])
    publisher = make_webhooks("http://hooks.example.com/", timeout=0.2)
    outcomes = list(publisher.publish([make_message(), make_message()]))
    assert publisher.prepare()
    held.set()
    assert kinds(outcomes) == ["unanswered"] * 2


def test_no_request_begins_after_the_timeout(make_webhooks: MakePublisher):
    def reply(_call: Call) -> Reply:
        time.sleep(1.0)
        return Reply()

    with Receiver(reply) as receiver:
        publisher = make_webhooks(receiver.url(), timeout=3.0, concurrency=1)
        outcomes = list(publisher.publish([make_message() for _ in range(50)]))
    found = kinds(outcomes)
    assert found[0] == "accepted"
    assert found[-1] == "set aside"
    assert outcomes[-1].error_class == "http.late"
    assert found.count("accepted") <= 4


def test_a_closed_publisher_connects_again(receiver: Receiver, make_webhooks: MakePublisher):
    publisher = make_webhooks(receiver.url(), concurrency=1)
    for _ in range(2):
        assert publisher.publish([make_message()]) == [ACCEPTED]
        publisher.close()
    assert len({call.connection for call in receiver.calls}) == 2


@pytest.mark.django_db(transaction=True)
def test_a_relay_delivers_to_other_servers_while_one_is_down(receiver: Receiver, settings: Any):
    urls = {"down": f"http://127.0.0.1:{free_port()}/", "up": receiver.url()}
    options = {"url": urls, "allow_private_addresses": True}
    backend = "django_outbox.brokers.http.HTTPPublisher"
    settings.OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": backend, "OPTIONS": options}}}
    down = put(30, type="down")
    up = put(30, type="up")
    with Relay() as relay:
        assert relay.drain().processed == 30
    found = rows("default")
    assert {found[id]["attempts"] for id in down} == {0}
    assert {found[id]["failed_at"] for id in down} == {None}
    assert all(found[id]["processed_at"] for id in up)


def test_a_server_may_ask_to_wait_for_five_minutes_at_most(receiver: Receiver, make_webhooks: MakePublisher):
    def reply(_call: Call) -> Reply:
        return Reply(429, headers={"Retry-After": "86400"})

    with Receiver(reply) as busy:
        publisher = make_webhooks({"busy": busy.url(), "*": receiver.url()})
        batch = [make_message(type="busy"), make_message(type="other")]
        first, _ = publisher.publish(batch)
        second, other = publisher.publish(batch)
        assert len(busy.calls) == 1
    assert (first.error_class, first.retry_after) == ("http.429", 86_400)
    assert (second.error_class, other) == ("http.unavailable", ACCEPTED)
    assert "the receiver responded 429" in second.error
    assert 290 < (second.retry_after or 0) <= 300
