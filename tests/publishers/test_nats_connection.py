"""Connections of the JetStream publisher that are refused, lost or silent."""

import threading
from collections.abc import Callable

import pytest

from django_outbox.brokers import BatchRefused
from django_outbox.messages import ACCEPTED, Outcome, OutcomeKind
from tests.support.claimed import make_message
from tests.support.nats.server import NatsServer
from tests.support.nats.tools import MakeJetStream, Nats, nats_port, nats_url
from tests.support.outcomes import only_error
from tests.support.ports import free_port
from tests.support.proxies import Proxies, Proxy
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.nats.fixtures"]


# Outages


def test_each_server_that_cannot_be_reached_is_named_and_another_one_is_used(nats: Nats, make_jetstream: MakeJetStream):
    port = free_port()
    down = [f"nats://127.0.0.1:{port}", "nats://no-such-host.invalid"]
    error = make_jetstream(down, timeout=4.0).prepare()
    assert f"127.0.0.1:{port}: connection refused; start the server, or correct host and port in servers" in error
    assert "no-such-host.invalid:4222: the host name cannot be resolved, check the host in servers" in error
    publisher = make_jetstream([*down, nats_url()], timeout=6.0)
    assert publisher.node_timeout == 2.0
    assert publisher.publish([make_message(nats.stream())]) == [ACCEPTED]


def test_a_connection_that_is_lost_within_a_batch_leaves_the_rest_unanswered_and_nothing_twice(
    nats: Nats, proxies: Proxies, make_jetstream: MakeJetStream
):
    stream, proxy = nats.stream(), proxies.open(nats_port())
    publisher = make_jetstream(nats_url(port=proxy.port))
    publisher.max_in_flight = 10
    messages = [make_message(stream, b"%d" % n) for n in range(500)]
    assert publisher.prepare() == ""
    proxy.cut(after=60_000)
    outcomes = publisher.publish(messages)
    accepted = [outcome is ACCEPTED for outcome in outcomes]
    assert accepted.count(True) > 0
    left = [message for message, is_accepted in zip(messages, accepted, strict=True) if not is_accepted]
    error = only_error([each for each in outcomes if each is not ACCEPTED], OutcomeKind.UNANSWERED)
    assert f"the connection to NATS at 127.0.0.1:{proxy.port} was lost" in error
    assert publisher.publish(left) == [ACCEPTED] * len(left)
    assert sorted(each.data for each in nats.take(stream)) == sorted(each.payload for each in messages)


@pytest.mark.parametrize(
    ("fail", "recover"),
    [(Proxy.go_silent, Proxy.speak), (Proxy.hold_back, Proxy.resume)],
    ids=["does not respond", "reads no more"],
)
def test_a_server_that_hangs_is_an_outage(
    nats: Nats,
    proxies: Proxies,
    make_jetstream: MakeJetStream,
    fail: Callable[[Proxy], None],
    recover: Callable[[Proxy], None],
):
    stream, proxy = nats.stream(), proxies.open(nats_port())
    publisher = make_jetstream(nats_url(port=proxy.port), timeout=1.2)
    assert publisher.prepare() == ""
    fail(proxy)
    # More than the buffers of the sockets take.
    outcomes = publisher.publish([make_message(stream, b"1" * 500_000)] * 40)
    error = only_error(outcomes, OutcomeKind.UNANSWERED)
    assert error == f"NATS at 127.0.0.1:{proxy.port} does not respond"
    eventually(lambda: "outbox-nats-shop" not in {each.name for each in threading.enumerate()}, "its thread has ended")
    recover(proxy)
    eventually(lambda: publisher.publish([make_message(stream)]) == [ACCEPTED], "it has connected again")


def test_a_message_because_of_which_the_server_ends_the_connection_has_to_be_found(make_jetstream: MakeJetStream):
    with NatsServer() as server, Nats(server.url) as nats:
        stream = nats.stream()
        publisher = make_jetstream(server.url)
        assert publisher.prepare() == ""
        # The publisher knows the limit that held when it connected.
        server.reload("max_payload: 2000")
        with pytest.raises(BatchRefused, match=r"(?i)maximum payload violation") as refused:
            publisher.publish([make_message(stream, b"1" * 3000), make_message(stream)])
        assert refused.value.permanent
        # The next connection knows the new one.
        rejected, accepted = publisher.publish([make_message(stream, b"1" * 3000), make_message(stream)])
        assert rejected.error_class == "nats.too_large"
        assert "the server's max_payload is 2,000" in rejected.error
        assert accepted is ACCEPTED


def test_a_connection_that_may_no_longer_receive_confirmations_is_replaced(make_jetstream: MakeJetStream):
    users = 'authorization {{ users: [{{ user: "a", password: "a", permissions: {{ subscribe: ["{}"] }} }}] }}'
    with NatsServer(users.format("_INBOX.>")) as server:
        publisher = make_jetstream(f"nats://a:a@127.0.0.1:{server.port}")
        assert publisher.prepare() == ""
        server.reload(users.format("none"))
        eventually(lambda: "permit the user to subscribe to it, or set inbox_prefix" in publisher.prepare())
        server.reload(users.format("_INBOX.>"))
        assert publisher.prepare() == ""


def test_close_does_not_wait_for_a_server_that_does_not_respond(proxies: Proxies, make_jetstream: MakeJetStream):
    proxy = proxies.open(nats_port())
    proxy.go_silent()
    publisher = make_jetstream(nats_url(port=proxy.port), timeout=600.0)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(publisher.publish([make_message("t")])), daemon=True)
    thread.start()
    eventually(lambda: proxy.connections, "it connects")
    publisher.close()
    thread.join(60)
    assert only_error(outcomes, OutcomeKind.UNANSWERED) == "the publisher was closed"


def test_jetstream_that_is_not_enabled_is_an_outage(make_jetstream: MakeJetStream):
    with NatsServer(jetstream=False) as server:
        publisher = make_jetstream(server.url)
        error = only_error(publisher.publish([make_message("t")] * 2), OutcomeKind.UNANSWERED)
        assert "JetStream is not enabled on the server, or not for this account; start nats-server with -js" in error
