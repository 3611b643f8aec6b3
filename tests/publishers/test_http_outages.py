"""The publisher for HTTP when the server is unavailable or slow."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from django_outbox.messages import Outcome, OutcomeKind
from tests.support.claimed import make_message
from tests.support.http.receiver import Call, MakePublisher, Receiver, Reply

pytest_plugins = ["tests.support.http.fixtures"]


def kinds(outcomes: list[Outcome]) -> list[str]:
    return [outcome.kind.value if outcome.counted else "set aside" for outcome in outcomes]


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no handler of a server outlives it."""
    event = threading.Event()
    yield event
    event.set()


def test_a_message_that_alone_has_no_response_is_to_blame(make_webhooks: MakePublisher, held: threading.Event):
    def reply(call: Call) -> Reply:
        if call.headers["outbox-key"] == "poison":
            held.wait(60)
        return Reply()

    with Receiver(reply) as receiver:
        publisher = make_webhooks(receiver.url(), timeout=4.0, concurrency=1)
        outcomes = list(publisher.publish([make_message(key="poison"), make_message(key="good")]))
        held.set()
    assert kinds(outcomes) == ["deferred", "accepted"]
    assert outcomes[0].error == f"http://127.0.0.1:{receiver.port}: no response in time"
    assert outcomes[0].error_class == "http.timeout"


def test_messages_without_a_response_are_not_an_outage_if_others_have_one(
    make_webhooks: MakePublisher, held: threading.Event
):
    def reply(call: Call) -> Reply:
        if call.headers["outbox-key"] == "slow":
            held.wait(60)
        return Reply()

    with Receiver(reply) as receiver:
        publisher = make_webhooks(receiver.url(), timeout=2.0, concurrency=2)
        outcomes = list(publisher.publish([make_message(key=key) for key in ["slow"] * 5 + ["good"]]))
        held.set()
    # The thread that gives up first may begin another one.
    assert kinds(outcomes[:2] + outcomes[3:]) == ["deferred"] * 2 + ["set aside"] * 3
    assert [outcomes[0].error_class, outcomes[-1].error_class] == ["http.timeout", "http.late"]


def test_a_server_that_hangs_is_an_outage_and_gets_few_requests(make_webhooks: MakePublisher):
    with socket.create_server(("127.0.0.1", 0)) as server:
        publisher = make_webhooks(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=0.5, concurrency=2)
        outcomes = list(publisher.publish([make_message() for _ in range(50)]))
        assert kinds(outcomes) == ["unanswered"] * 50
        server.setblocking(False)
        # The thread that gives up first may begin another one, and the last is `OPTIONS *`.
        with pytest.raises(BlockingIOError):
            for _ in range(5):
                server.accept()[0].close()


def test_a_response_that_drips_does_not_last_longer_than_the_timeout(make_webhooks: MakePublisher):
    ended = threading.Event()

    def reply(_call: Call) -> Reply:
        # The status line comes byte by byte, each one in time.
        return Reply(raw=iter(lambda: None if ended.wait(0.05) else b"H", None))

    with Receiver(reply) as receiver:
        began_at = time.monotonic()
        (outcome,) = make_webhooks(receiver.url(), timeout=0.5).publish([make_message()])
        ended.set()
    # The receiver responds to `OPTIONS *`.
    assert kinds([outcome]) == ["deferred"]
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


def test_a_receiver_may_ask_for_a_pause_of_five_minutes_at_most(make_webhooks: MakePublisher):
    with Receiver(lambda _call: Reply(429, headers={"Retry-After": "86400"})) as receiver:
        publisher = make_webhooks(receiver.url())
        (outcome,) = publisher.publish([make_message()])
        assert (outcome.error_class, outcome.retry_after) == ("http.429", 86_400)
        paused_for = publisher._server._busy_until - time.monotonic()
    assert 290 < paused_for <= 300
