"""The RabbitMQ publisher's connection: opening it, losing it, its exchange, its thread."""

import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from django.conf import settings
from pika import spec

from django_outbox.brokers.rabbitmq import connection
from django_outbox.brokers.rabbitmq.publisher_connection import RabbitMQPublisherConnection
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.claimed import make_message
from tests.support.outcomes import kinds, only_error
from tests.support.ports import free_port
from tests.support.proxies import Proxy
from tests.support.rabbitmq.tools import (
    HEARTBEAT,
    Broker,
    MakePublisher,
    Publishing,
    broker_url,
    channels_of,
    in_flight,
    say,
)
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq.fixtures"]


# The exchange


def test_a_missing_exchange_is_named_and_later_found(broker: Broker, make_publisher: MakePublisher):
    exchange, queue = broker.exchange_name(), broker.queue()
    publisher = make_publisher(exchange=exchange)
    error = only_error(publisher.publish([make_message("t")] * 3), OutcomeKind.UNANSWERED)
    assert f"404 NOT_FOUND - no exchange '{exchange}' in vhost '/': declare it, or set declare_exchange" in error
    broker.channel.exchange_declare(exchange, "fanout", durable=True)
    broker.channel.queue_bind(queue, exchange)
    assert publisher.publish([make_message("t")] * 3) == [ACCEPTED] * 3


def test_a_durable_exchange_is_declared_on_demand(broker: Broker, make_publisher: MakePublisher):
    exchange = broker.exchange_name()
    publisher = make_publisher(exchange=exchange, declare_exchange="headers")
    assert "NO_ROUTE" in only_error(publisher.publish([make_message("t")]), OutcomeKind.REJECTED)
    # The broker refuses to declare it again with other properties.
    broker.channel.exchange_declare(exchange, "headers", durable=True)


@pytest.mark.parametrize(
    ("place", "kind"),
    [("exchange 'amq.default'", OutcomeKind.UNANSWERED), ("topic 'a.b' in exchange 'shop'", OutcomeKind.DEFERRED)],
    ids=["exchange", "topic"],
)
def test_a_user_who_may_not_write_to_the_exchange_is_an_outage_but_not_one_who_may_not_use_a_routing_key(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher, place: str, kind: OutcomeKind
):
    text = f"ACCESS_REFUSED - access to {place} in vhost '/' refused for user 'guest'"
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(broker.queue())]) == [ACCEPTED]
    proxy.hold_back()
    publishing = Publishing(publisher, [make_message("a.b")])
    eventually(lambda: in_flight(publisher), "the message was sent")
    say(proxy, spec.Channel.Close(403, text, 60, 40), channel=1)
    assert f"403 {text}: give the user of the url " in only_error(publishing.outcomes(), kind)
    proxy.resume()


# Connecting


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    publisher = make_publisher(broker_url(password="s3cret"))
    error = only_error(publisher.publish([make_message("t")] * 2), OutcomeKind.UNANSWERED)
    assert "the login is refused, check user and password in url" in error
    assert "s3cret" not in error + caplog.text + repr(publisher)


def test_a_wrong_vhost_is_an_error_that_names_it(make_publisher: MakePublisher):
    publisher = make_publisher(f"{broker_url().rpartition('/')[0]}/no-such-vhost")
    error = only_error(publisher.publish([make_message("t")]), OutcomeKind.UNANSWERED)
    assert "access to the vhost is refused" in error
    assert "no-such-vhost" in error


def test_a_server_that_hangs_up_while_connecting_may_be_a_broker_or_not(proxy: Proxy, make_publisher: MakePublisher):
    proxy.go_down()
    publisher = make_publisher(broker_url(port=proxy.port))
    error = only_error(publisher.publish([make_message("t")]), OutcomeKind.UNANSWERED)
    assert "the broker is starting or stopping, a proxy cannot reach it, or this port does not speak AMQP" in error


def test_the_nodes_are_tried_in_random_order(make_publisher: MakePublisher):
    ports = [free_port(), free_port()]
    urls = [broker_url(port=port) for port in ports]
    errors = {only_error(make_publisher(urls).publish([make_message("t")]), OutcomeKind.UNANSWERED) for _ in range(40)}
    orders = {tuple(sorted(ports, key=lambda port: error.index(str(port)))) for error in errors}
    assert orders == {tuple(ports), tuple(reversed(ports))}


def test_connecting_has_a_short_timeout_for_each_node(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
):
    """The broker may take its time over a message, and yet a node that does not let the publisher in is left soon."""
    monkeypatch.setattr("random.sample", lambda hosts, _count: [*hosts])
    assert make_publisher(broker_url(port=proxy.port)).prepare() == ""
    last_call = pika.frame.Method(1, spec.Confirm.Select()).marshal()
    all_but_one_byte = proxy.beginning.index(last_call) + len(last_call) - 1
    queue = broker.queue()
    for allowed in (0, 8, all_but_one_byte - 20, all_but_one_byte):
        proxy.hold_back(after=allowed)
        urls = [broker_url(port=proxy.port), settings.AMQP_URL]
        publisher = make_publisher(urls, timeout=60, connect_timeout=2)
        began = time.monotonic()
        assert publisher.publish([make_message(queue)]) == [ACCEPTED]
        assert time.monotonic() - began < 25
    assert proxy.connections == 5
    # The first connection can be closed cleanly.
    proxy.resume()


def test_a_connection_that_is_replaced_while_it_opens_is_opened_again(proxy: Proxy, make_publisher: MakePublisher):
    """A thread that tries destinations ends the connection that another thread may be waiting for."""
    proxy.hold_back()
    publisher = make_publisher(broker_url(port=proxy.port))
    with ThreadPoolExecutor(1) as pool:
        preparing = pool.submit(publisher.prepare)
        eventually(lambda: proxy.connections == 1, "the publisher began to connect")
        publisher._usable(RabbitMQPublisherConnection).retire()
        eventually(lambda: preparing.done() or proxy.connections == 2, "the publisher connects again")
        proxy.resume()
        assert preparing.result(60) == ""


# Losing the connection


def test_unconfirmed_messages_are_unanswered_when_the_connection_is_lost(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    confirmed = proxy.bytes_from_server
    proxy.hold_back(after=100_000)
    messages = [make_message(queue, str(n).encode().rjust(250)) for n in range(1000)]
    publishing = Publishing(publisher, messages)
    eventually(lambda: proxy.bytes_from_server > confirmed, "a message was confirmed")
    proxy.end_connections()
    outcomes = publishing.outcomes()
    counts = Counter(kinds(outcomes))
    assert set(counts) == {OutcomeKind.ACCEPTED, OutcomeKind.UNANSWERED}
    assert "was lost" in outcomes[-1].error
    arrived = {received.properties.message_id for received in broker.take(queue)}
    assert {str(m.message_id) for m, o in zip(messages, outcomes, strict=True) if o == ACCEPTED} <= arrived

    proxy.resume()
    again = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome != ACCEPTED]
    assert publisher.publish(again) == [ACCEPTED] * len(again)
    assert proxy.connections == 2


def test_an_unresponsive_broker_is_given_up_and_receives_no_more_of_the_batch(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher
):
    """Data that has not left this machine is dropped; a network buffers less than these 40 MB."""
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=1)
    assert publisher.publish([make_message(queue, b"first")]) == [ACCEPTED]
    proxy.hold_back()
    error = only_error(publisher.publish([make_message(queue, b"x" * 400_000)] * 100), OutcomeKind.UNANSWERED)
    assert "no response in time" in error
    proxy.resume()
    assert publisher.publish([make_message(queue, b"last")]) == [ACCEPTED]
    eventually(lambda: proxy.open == 1, "the first connection ended")
    # The second one only showed that the broker does not respond.
    assert proxy.connections == 3
    assert broker.depth(queue) < 102


def test_an_idle_connection_is_kept_alive(broker: Broker, proxy: Proxy, make_publisher: MakePublisher):
    """The broker closes a connection after two missed heartbeats, which are a second apart here."""
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port, query="heartbeat=1"))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    eventually(lambda: proxy.beginning.count(HEARTBEAT) >= 8, "heartbeats were sent")
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert proxy.connections == 1


def test_a_blocked_connection_is_given_up(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=2)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    say(proxy, spec.Connection.Blocked("low on memory"))
    eventually(lambda: "RabbitMQ blocks the connection: low on memory" in caplog.text, "the publisher noticed it")
    error = only_error(publisher.publish([make_message(queue)] * 2), OutcomeKind.UNANSWERED)
    assert "was blocked for 2 s: low on memory" in error
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert broker.depth(queue) == 2


def test_a_message_sent_before_the_broker_blocks_waits_until_it_unblocks(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    """A blocked broker owes no confirm, so no other connection is opened."""
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=12)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    sent = Publishing(publisher, [make_message(queue, b"sent")])
    eventually(lambda: in_flight(publisher), "the message was sent")
    say(proxy, spec.Connection.Blocked("low on disk"))
    eventually(lambda: "low on disk" in caplog.text, "the publisher noticed it")
    kept = Publishing(publisher, [make_message(queue, b"kept")])
    sent.join(timeout=2.5)
    assert sent.is_alive()
    say(proxy, spec.Connection.Unblocked())
    proxy.resume()
    assert sent.outcomes() == kept.outcomes() == [ACCEPTED]
    assert [received.body for received in broker.take(queue)] == [b"{}", b"sent", b"kept"]
    assert proxy.connections == 1


def test_a_broker_that_opens_no_further_channel_is_given_up(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    # A busy machine takes long to connect; then messages would go by a connection for trials.
    publisher = make_publisher(broker_url(port=proxy.port), timeout=4)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    threads = [Publishing(publisher, [make_message(queue)]) for _ in range(3)]
    for thread in threads:
        assert "no response in time" in only_error(thread.outcomes(), OutcomeKind.UNANSWERED)


# Threads and processes


def test_more_threads_than_channels_take_turns(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    publisher = make_publisher(broker_url(query="channel_max=1"))
    threads = [Publishing(publisher, [make_message(queue)] * 1500) for _ in range(4)]
    assert [thread.outcomes() for thread in threads] == [[ACCEPTED] * 1500] * 4
    assert len(channels_of(publisher)) == 1
    assert broker.depth(queue) == 6000


def publisher_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "outbox-rabbitmq-shop"]


def test_close_does_not_wait_for_an_unresponsive_broker(
    broker: Broker, proxy: Proxy, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.2)
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    publishing = Publishing(publisher, [make_message(queue)])
    eventually(lambda: in_flight(publisher), "the message was sent")
    publisher.close()
    assert only_error(publishing.outcomes(), OutcomeKind.UNANSWERED) == "the publisher was closed"
    assert publisher_threads() == []


def test_close_while_connecting_leaves_no_thread_behind(proxy: Proxy, make_publisher: MakePublisher):
    proxy.hold_back()
    publisher = make_publisher(broker_url(port=proxy.port))
    publishing = Publishing(publisher, [make_message("t")])
    eventually(lambda: proxy.connections, "the publisher began to connect")
    publisher.close()
    assert only_error(publishing.outcomes(), OutcomeKind.UNANSWERED) == "the publisher was closed"
    assert publisher_threads() == []
