"""The RabbitMQ publisher on a real broker: answers, properties, outages, hosts, TLS and options."""

import datetime
import logging
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st
from pika import spec

from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict
from django_outbox.publishers import rabbitmq_connection
from django_outbox.publishers.rabbitmq import RabbitMQPublisher
from django_outbox.publishers.rabbitmq_batch import Batch, Unconfirmed
from django_outbox.publishers.rabbitmq_connection import REFUSED
from django_outbox.publishers.rabbitmq_encoding import EncodedProperties
from tests.rabbitmq_tools import Broker, TcpProxy, broker_url, eventually, free_port, make_message

MakePublisher = Callable[..., RabbitMQPublisher]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with TcpProxy() as proxy:
        yield proxy


@pytest.fixture
def make_publisher() -> Iterator[MakePublisher]:
    made: list[RabbitMQPublisher] = []

    def make(url: str | Sequence[str] = settings.AMQP_URL, **options: Any) -> RabbitMQPublisher:
        made.append(RabbitMQPublisher("shop", url=url, **options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


class Publishing(threading.Thread):
    """Publishes in a thread of its own; `outcomes` waits for the end."""

    def __init__(self, publisher: RabbitMQPublisher, messages: Sequence[Message]) -> None:
        super().__init__()
        self._publish = lambda: publisher.publish(messages)
        self._outcomes: Sequence[Outcome] = []
        self.start()

    def run(self) -> None:
        self._outcomes = self._publish()

    def outcomes(self) -> Sequence[Outcome]:
        self.join()
        return self._outcomes


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]


def only_error(outcomes: Sequence[Outcome], verdict: Verdict) -> str:
    """Return the error that all outcomes have, and see to it that all have that verdict."""
    assert set(verdicts(outcomes)) == {verdict}
    errors = {outcome.error for outcome in outcomes}
    assert len(errors) == 1
    return errors.pop()


# What the consumer sees


def test_the_properties_tell_what_the_message_is(broker: Broker, make_publisher: MakePublisher):
    exchange, queue = broker.exchange("topic"), broker.queue()
    broker.channel.queue_bind(queue, exchange, "shop.orders")
    message = make_message(
        "shop.orders",
        b'{"id": 1}',
        type="order.created",
        key="order-1",
        headers={"correlation_id": "abc", "source": "web"},
        occurred_at=datetime.datetime(2026, 5, 6, 7, 8, 9, 999_999, tzinfo=datetime.timezone.utc),
    )
    assert make_publisher(exchange=exchange).publish([message]) == [ACCEPTED]
    (received,) = broker.take(queue)
    properties = received.properties
    assert received.body == b'{"id": 1}'
    assert received.routing_key == "shop.orders"
    assert properties.message_id == str(message.message_id)
    assert properties.type == "order.created"
    assert properties.timestamp == datetime.datetime(2026, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc).timestamp()
    assert properties.content_type == "application/json"
    assert properties.content_encoding == "utf-8"
    assert properties.delivery_mode == 2
    assert properties.correlation_id == "abc"
    assert properties.headers == {"correlation_id": "abc", "source": "web", "outbox-key": "order-1"}


def test_the_type_is_the_routing_key_of_a_message_without_topic(broker: Broker, make_publisher: MakePublisher):
    exchange, queue = broker.exchange("topic"), broker.queue()
    broker.channel.queue_bind(queue, exchange, "order.*")
    make_publisher(exchange=exchange).publish([make_message(type="order.paid")])
    (received,) = broker.take(queue)
    assert received.routing_key == "order.paid"


def test_a_message_without_key_has_no_key_header(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    make_publisher().publish([make_message(queue)])
    (received,) = broker.take(queue)
    assert received.properties.headers == {}
    assert received.properties.correlation_id is None


def test_the_key_header_can_be_renamed_and_messages_be_transient(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    make_publisher(key_header="aggregate", persistent=False).publish([make_message(queue, key="ü-1")])
    (received,) = broker.take(queue)
    assert received.properties.headers == {"aggregate": "ü-1"}
    assert received.properties.delivery_mode == 1


def test_all_of_json_fits_into_headers(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    headers = {
        "größe 🦡": "ß 🦡",
        "": "",
        "float": 0.1,
        "whole float": 1e300,
        "none": None,
        "yes": True,
        "no": False,
        "small": -1,
        "32 bits": 2**31,
        "64 bits": -(2**63),
        "nested": {"list": [1, "a", None, [True, {"deep": 2.5}]], "empty": {}, "none": []},
    }
    assert make_publisher().publish([make_message(queue, headers=headers)]) == [ACCEPTED]
    (received,) = broker.take(queue)
    assert received.properties.headers == headers


@pytest.mark.parametrize("value", ["x" * 256, 5, ["a"]], ids=["long", "number", "list"])
def test_a_correlation_id_that_is_no_short_string_stays_a_header(
    broker: Broker, make_publisher: MakePublisher, value: Any
):
    queue = broker.queue()
    assert make_publisher().publish([make_message(queue, headers={"correlation_id": value})]) == [ACCEPTED]
    (received,) = broker.take(queue)
    assert received.properties.correlation_id is None
    assert received.properties.headers == {"correlation_id": value}


def test_the_connection_carries_the_name_of_the_publisher(proxy: TcpProxy, make_publisher: MakePublisher):
    make_publisher(broker_url(port=proxy.port)).publish([make_message("nowhere")])
    assert b"connection_name" in proxy.beginning
    assert b"django_outbox shop" in proxy.beginning


# Answers


NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"headers": {"n": 2**63}}, "headers['n']: an integer beyond 64 bits"),
        ({"headers": {"a": [{"b": 10**30}]}}, "headers['a']: an integer beyond 64 bits"),
        ({"headers": {"é" * 128: 1}}, "its name is 256 bytes long"),
        ({"headers": {"a": {"b" * 256: 1}}}, "headers['a']: a name in it is 256 bytes long"),
        ({"headers": {"a": "\ud800"}}, "headers['a']: a lone surrogate"),
        ({"headers": {"a": NESTED}}, "headers['a']: it is nested too deeply"),
        ({"headers": {"a": object()}}, "headers['a']: a object is no JSON value"),
        ({"headers": {"CC": "other"}}, "headers['CC'] must be a list"),
        ({"headers": {"BCC": None}}, "headers['BCC'] must be a list"),
        ({"headers": {"a": "x" * 131_072}}, "frame_max agreed with the broker is 131,072"),
        ({"type": "x" * 256}, "type is 256 bytes long"),
        ({"topic": "x" * 256}, "the routing key (topic, or type) is 256 bytes long"),
        ({"occurred_at": datetime.datetime(1969, 12, 31, tzinfo=datetime.timezone.utc)}, "occurred_at is before 1970"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_amqp_cannot_carry_is_rejected_alone(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher, fields: dict[str, Any], reason: str
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    poison = make_message(**{"topic": queue, **fields})
    for _ in range(2):
        outcomes = publisher.publish([make_message(queue, b"1"), poison, make_message(queue, b"2")])
        assert verdicts(outcomes) == [Verdict.ACCEPTED, Verdict.REJECTED, Verdict.ACCEPTED]
        assert reason in outcomes[1].error
    assert [received.body for received in broker.take(queue)] == [b"1", b"2"] * 2
    assert proxy.connections == 1
    assert only_error(publisher.publish([poison]), Verdict.REJECTED)


def test_headers_fill_the_agreed_frame_to_the_last_byte(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue()
    publisher = make_publisher(broker_url(query="frame_max=4096"))
    room = 0
    while True:
        (outcome,) = publisher.publish([make_message(queue, b"x" * 10_000, headers={"a": "x" * (3900 + room)})])
        if outcome != ACCEPTED:
            break
        room += 1
    assert "a frame of 4,097 bytes" in outcome.error
    assert room > 0
    assert broker.depth(queue) == room


def test_confirms_of_several_queues_are_told_apart(broker: Broker, make_publisher: MakePublisher):
    full = broker.queue(max_length=0, overflow="reject-publish")
    topics = [broker.queue(), broker.queue("quorum"), "nowhere", broker.queue(), full, broker.queue("quorum")]
    expected = {"nowhere": Verdict.REJECTED, full: Verdict.NOT_NOW}
    messages = [make_message(topics[n % len(topics)], str(n).encode()) for n in range(3000)]
    outcomes = make_publisher().publish(messages)
    assert verdicts(outcomes) == [expected.get(message.topic, Verdict.ACCEPTED) for message in messages]
    for topic in {*topics} - {*expected}:
        bodies = [message.payload for message in messages if message.topic == topic]
        assert [received.body for received in broker.take(topic)] == bodies


def test_an_unroutable_message_is_rejected_with_the_remedy(broker: Broker, make_publisher: MakePublisher):
    exchange, queue = broker.exchange("topic"), broker.queue()
    broker.channel.queue_bind(queue, exchange, "known")
    messages = [make_message("unknown" if n % 3 == 1 else "known", str(n).encode()) for n in range(30)]
    outcomes = make_publisher(exchange=exchange).publish(messages)
    assert verdicts(outcomes) == [Verdict.REJECTED if n % 3 == 1 else Verdict.ACCEPTED for n in range(30)]
    assert outcomes[1].error == (
        f"unroutable: 312 NO_ROUTE, exchange '{exchange}', routing key 'unknown'; bind a queue, or set mandatory=False"
    )
    assert [int(received.body) for received in broker.take(queue)] == [n for n in range(30) if n % 3 != 1]


def test_a_message_that_is_in_flight_twice_is_answered_twice(make_publisher: MakePublisher):
    message = make_message("nowhere")
    assert only_error(make_publisher().publish([message, message]), Verdict.REJECTED)


def test_an_unroutable_message_is_dropped_where_it_is_not_mandatory(make_publisher: MakePublisher):
    assert make_publisher(mandatory=False).publish([make_message("nowhere")]) == [ACCEPTED]


def test_a_full_queue_refuses_for_now(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue(max_length=5, overflow="reject-publish")
    publisher = make_publisher()
    outcomes = [publisher.publish([make_message(queue)])[0] for _ in range(8)]
    assert outcomes == [ACCEPTED] * 5 + [REFUSED] * 3
    assert "basic.nack" in REFUSED.error
    assert broker.depth(queue) == 5


def test_a_payload_beyond_the_limit_of_the_broker_is_rejected_alone(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    publishing = Publishing(publisher, [make_message(queue, b"x" * 1001), make_message(queue, b"x" * 1000)])
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    eventually(lambda: rabbitmq_connection_of(publisher)._unconfirmed.batches, "the messages were sent")
    proxy.say(spec.Channel.Close(406, text, 60, 40), channel=1)
    too_large, other = publishing.outcomes()
    assert too_large.verdict is Verdict.REJECTED
    assert "max_message_size of 1,000 bytes" in too_large.error
    assert other.verdict is Verdict.UNANSWERED
    assert text in other.error


def rabbitmq_connection_of(publisher: RabbitMQPublisher) -> rabbitmq_connection.RabbitMQConnection:
    assert publisher._connection is not None
    return publisher._connection


@given(data=st.data(), sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_confirms_in_any_order_settle_each_message_once(data: st.DataObject, sizes: list[int]):
    """Single and multiple confirms, acks and nacks, mixed: a message has the answer of the first that meant it."""
    batches = [Batch([make_message("q") for _ in range(size)], lambda _: EncodedProperties(b"")) for size in sizes]
    unconfirmed = Unconfirmed()
    for batch in batches:
        unconfirmed.add(batch, range(len(batch.messages)))
    total = sum(sizes)
    expected: dict[int, Outcome] = {}
    while len(expected) < total:
        tag = data.draw(st.sampled_from([each for each in range(1, total + 1) if each not in expected]))
        multiple, outcome = data.draw(st.booleans()), data.draw(st.sampled_from([ACCEPTED, REFUSED]))
        for each in range(1, tag + 1) if multiple else [tag]:
            expected.setdefault(each, outcome)
        unconfirmed.confirm(tag, outcome, multiple=multiple)
    assert [outcome for batch in batches for outcome in batch.wait()] == [expected[tag] for tag in sorted(expected)]
    assert not unconfirmed.batches


# Without confirms


def test_without_confirms_a_message_is_accepted_when_the_broker_has_read_it(
    broker: Broker, make_publisher: MakePublisher
):
    queue = broker.queue("quorum")
    publisher = make_publisher(dangerously_disable_confirms=True)
    for _ in range(2):
        outcomes = publisher.publish([make_message(queue)] * 1200 + [make_message("nowhere")])
        assert verdicts(outcomes) == [Verdict.ACCEPTED] * 1200 + [Verdict.REJECTED]
    eventually(lambda: broker.depth(queue) == 2400, "all messages are in the queue")


def test_without_confirms_a_refusal_is_not_seen(broker: Broker, make_publisher: MakePublisher):
    queue = broker.queue(max_length=0, overflow="reject-publish")
    assert make_publisher(dangerously_disable_confirms=True).publish([make_message(queue)]) == [ACCEPTED]


# The exchange


@pytest.mark.parametrize("confirms", [True, False])
def test_a_missing_exchange_is_named_and_then_found(broker: Broker, make_publisher: MakePublisher, confirms: bool):
    exchange, queue = broker.exchange_name(), broker.queue()
    publisher = make_publisher(exchange=exchange, dangerously_disable_confirms=not confirms)
    error = only_error(publisher.publish([make_message("t")] * 3), Verdict.UNANSWERED)
    assert f"404 NOT_FOUND - no exchange '{exchange}' in vhost '/': declare it, or set declare_exchange" in error
    broker.channel.exchange_declare(exchange, "fanout", durable=True)
    broker.channel.queue_bind(queue, exchange)
    assert publisher.publish([make_message("t")] * 3) == [ACCEPTED] * 3


def test_a_durable_exchange_is_declared_on_demand(broker: Broker, make_publisher: MakePublisher):
    exchange = broker.exchange_name()
    publisher = make_publisher(exchange=exchange, declare_exchange="headers")
    assert "NO_ROUTE" in only_error(publisher.publish([make_message("t")]), Verdict.REJECTED)
    # The broker refuses to declare it again with other properties.
    broker.channel.exchange_declare(exchange, "headers", durable=True)


def test_an_exchange_of_another_type_is_an_error_with_the_remedy(broker: Broker, make_publisher: MakePublisher):
    publisher = make_publisher(exchange=broker.exchange("fanout"), declare_exchange="topic")
    error = only_error(publisher.publish([make_message("t")]), Verdict.UNANSWERED)
    assert "406 PRECONDITION_FAILED - inequivalent arg 'type'" in error
    assert "change declare_exchange" in error


def test_a_forbidden_exchange_is_an_error_with_the_remedy(make_publisher: MakePublisher):
    error = only_error(make_publisher(exchange="amq.rabbitmq.log").publish([make_message("t")]), Verdict.UNANSWERED)
    assert "403 ACCESS_REFUSED" in error
    assert "permission to write" in error


# Connecting


def test_the_constructor_does_not_connect(proxy: TcpProxy, make_publisher: MakePublisher):
    publisher = make_publisher(broker_url(port=proxy.port))
    publisher.close()
    assert proxy.connections == 0


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    publisher = make_publisher(broker_url(password="s3cret"))
    error = only_error(publisher.publish([make_message("t")] * 2), Verdict.UNANSWERED)
    assert "the login is refused, check user and password in url" in error
    assert "s3cret" not in error + caplog.text + repr(publisher)


def test_a_wrong_vhost_is_an_error_that_names_it(make_publisher: MakePublisher):
    publisher = make_publisher(f"{broker_url().rpartition('/')[0]}/no-such-vhost")
    error = only_error(publisher.publish([make_message("t")]), Verdict.UNANSWERED)
    assert "access to the vhost is refused" in error
    assert "no-such-vhost" in error


def test_a_refused_port_is_an_error_that_names_it(make_publisher: MakePublisher):
    port = free_port()
    error = only_error(make_publisher(broker_url(port=port)).publish([make_message("t")]), Verdict.UNANSWERED)
    assert f"cannot connect to RabbitMQ at 127.0.0.1:{port}: " in error
    assert "refused" in error


def test_an_unknown_host_is_an_error_that_names_it(make_publisher: MakePublisher):
    publisher = make_publisher("amqp://guest:guest@no-such-host.invalid/")
    error = only_error(publisher.publish([make_message("t")]), Verdict.UNANSWERED)
    assert "no-such-host.invalid:5672: the host name cannot be resolved" in error


def test_connecting_is_bounded_in_time(broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=0.3)
    proxy.hold_back()
    for allowed in (0, 8, 300, 400, 450):
        proxy.hold_back(after=allowed)
        error = only_error(publisher.publish([make_message(queue)]), Verdict.UNANSWERED)
        assert f"cannot connect to RabbitMQ at 127.0.0.1:{proxy.port}: no answer in time" in error
    proxy.resume()
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]


@pytest.mark.parametrize("down", ["refused", "unresolvable", "silent"])
def test_a_node_that_is_down_does_not_matter(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher, down: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("random.randrange", lambda _: 0)
    proxy.hold_back()
    first = {
        "refused": broker_url(port=free_port()),
        "unresolvable": "amqp://guest:guest@no-such-host.invalid/",
        "silent": broker_url(port=proxy.port),
    }
    publisher = make_publisher([first[down], settings.AMQP_URL], timeout=2)
    assert publisher.publish([make_message(broker.queue())]) == [ACCEPTED]


def test_the_nodes_are_tried_from_a_random_one_on(make_publisher: MakePublisher):
    ports = [free_port(), free_port()]
    publisher = make_publisher([broker_url(port=port) for port in ports])
    errors = {only_error(publisher.publish([make_message("t")]), Verdict.UNANSWERED) for _ in range(40)}
    orders = {tuple(sorted(ports, key=lambda port: error.index(str(port)))) for error in errors}
    assert orders == {tuple(ports), tuple(reversed(ports))}


# Losing the connection


def test_what_is_unconfirmed_when_the_connection_is_lost_stays_unanswered(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    confirmed = proxy.bytes_from_broker
    proxy.hold_back(after=100_000)
    messages = [make_message(queue, str(n).encode().rjust(250)) for n in range(1000)]
    publishing = Publishing(publisher, messages)
    eventually(lambda: proxy.bytes_from_broker > confirmed, "a message was confirmed")
    proxy.end_connections()
    outcomes = publishing.outcomes()
    counts = Counter(verdicts(outcomes))
    assert set(counts) == {Verdict.ACCEPTED, Verdict.UNANSWERED}
    assert "was lost" in outcomes[-1].error
    arrived = {received.properties.message_id for received in broker.take(queue)}
    assert {str(m.message_id) for m, o in zip(messages, outcomes, strict=True) if o == ACCEPTED} <= arrived

    proxy.resume()
    again = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome != ACCEPTED]
    assert publisher.publish(again) == [ACCEPTED] * len(again)
    assert proxy.connections == 2


def test_a_connection_that_the_broker_closes_is_made_anew(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    publishing = Publishing(publisher, [make_message(queue)])
    eventually(lambda: rabbitmq_connection_of(publisher)._unconfirmed.batches, "the message was sent")
    proxy.say(spec.Connection.Close(320, "CONNECTION_FORCED - by an operator", 0, 0))
    assert "320 CONNECTION_FORCED - by an operator" in only_error(publishing.outcomes(), Verdict.UNANSWERED)
    proxy.resume()
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]


def test_a_connection_lost_while_idle_costs_nothing(broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.end_connections()
    eventually(lambda: rabbitmq_connection_of(publisher).over, "the end was noticed")
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]


def test_a_silent_broker_is_given_up_and_what_it_has_not_read_never_reaches_it(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=0.5)
    assert publisher.publish([make_message(queue, b"1")]) == [ACCEPTED]
    proxy.hold_back()
    error = only_error(publisher.publish([make_message(queue, b"2")] * 50), Verdict.UNANSWERED)
    assert "has not answered for 0.5 seconds" in error
    proxy.resume()
    assert publisher.publish([make_message(queue, b"3")]) == [ACCEPTED]
    assert proxy.connections == 2
    assert [received.body for received in broker.take(queue)] == [b"1", b"3"]


def test_an_idle_connection_is_kept_alive(broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher):
    """The broker cuts a connection after two missed heartbeats: four seconds of one each."""
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), heartbeat=1)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    eventually(lambda: proxy.heartbeats >= 8, "heartbeats were sent")
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert proxy.connections == 1


def test_a_blocked_connection_is_given_up(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=0.3, blocked_timeout=1)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.say(spec.Connection.Blocked("low on memory"))
    eventually(lambda: "RabbitMQ blocks the connection: low on memory" in caplog.text, "it was noticed")
    error = only_error(publisher.publish([make_message(queue)] * 2), Verdict.UNANSWERED)
    assert "was blocked for 1 seconds: low on memory" in error
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    assert broker.depth(queue) == 2


def test_a_message_that_was_sent_before_the_block_waits_for_its_end(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher, caplog: pytest.LogCaptureFixture
):
    """The silence of a blocked broker does not count: the timeout for it is another one, and longer here."""
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port), timeout=1, blocked_timeout=60)
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    sent = Publishing(publisher, [make_message(queue, b"sent")])
    eventually(lambda: rabbitmq_connection_of(publisher)._unconfirmed.batches, "the message was sent")
    proxy.say(spec.Connection.Blocked("low on disk"))
    eventually(lambda: "low on disk" in caplog.text, "it was noticed")
    kept = Publishing(publisher, [make_message(queue, b"kept")])
    sent.join(timeout=2.5)
    assert sent.is_alive()
    proxy.say(spec.Connection.Unblocked())
    proxy.resume()
    assert sent.outcomes() == kept.outcomes() == [ACCEPTED]
    assert [received.body for received in broker.take(queue)] == [b"{}", b"sent", b"kept"]
    assert proxy.connections == 1


# Threads and processes


def publisher_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "outbox-rabbitmq-shop"]


def test_close_ends_the_connection_and_its_thread(broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher):
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(broker.queue())]) == [ACCEPTED]
    assert publisher_threads() == ["outbox-rabbitmq-shop"]
    publisher.close()
    assert publisher_threads() == []


def test_close_does_not_wait_for_a_silent_broker(
    broker: Broker, proxy: TcpProxy, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rabbitmq_connection, "CLOSE_TIMEOUT", 0.2)
    queue = broker.queue()
    publisher = make_publisher(broker_url(port=proxy.port))
    assert publisher.publish([make_message(queue)]) == [ACCEPTED]
    proxy.hold_back()
    publishing = Publishing(publisher, [make_message(queue)])
    eventually(lambda: rabbitmq_connection_of(publisher)._unconfirmed.batches, "the message was sent")
    publisher.close()
    assert only_error(publishing.outcomes(), Verdict.UNANSWERED) == "the publisher was closed"
    assert publisher_threads() == []


def test_close_while_connecting_leaves_nothing_behind(proxy: TcpProxy, make_publisher: MakePublisher):
    proxy.hold_back()
    publisher = make_publisher(broker_url(port=proxy.port))
    publishing = Publishing(publisher, [make_message("t")])
    eventually(lambda: proxy.connections, "it began to connect")
    publisher.close()
    assert only_error(publishing.outcomes(), Verdict.UNANSWERED) == "the publisher was closed"
    assert publisher_threads() == []


def test_a_forked_process_connects_by_itself(broker: Broker):
    queue = broker.queue()
    script = f"""
import os
from tests.rabbitmq_tools import make_message
from django_outbox.messages import ACCEPTED
from django_outbox.publishers.rabbitmq import RabbitMQPublisher

publisher = RabbitMQPublisher("shop", url={settings.AMQP_URL!r})
assert publisher.publish([make_message({queue!r}, b"before")]) == [ACCEPTED]
child = os.fork()
if child == 0:
    accepted = publisher.publish([make_message({queue!r}, b"child")]) == [ACCEPTED]
    publisher.close()
    os._exit(0 if accepted else 1)
assert os.waitpid(child, 0)[1] == 0
assert publisher.publish([make_message({queue!r}, b"parent")]) == [ACCEPTED]
publisher.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
    assert [received.body for received in broker.take(queue)] == [b"before", b"child", b"parent"]


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate for 127.0.0.1 with its key, and one of a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    for name, address in (("broker", "IP:127.0.0.1"), ("stranger", "IP:127.0.0.2")):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            + ["-subj", f"/CN={name}", "-addext", f"subjectAltName={address}", "-days", "2"]
            + ["-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"],
            check=True,
            capture_output=True,
        )
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def tls_proxy(certificates: dict[str, Path]) -> Iterator[TcpProxy]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    with TcpProxy(context) as proxy:
        yield proxy


def test_amqps_reaches_a_broker_whose_certificate_is_trusted(
    broker: Broker, tls_proxy: TcpProxy, make_publisher: MakePublisher, certificates: dict[str, Path]
):
    queue = broker.queue()
    url = broker_url(scheme="amqps", port=tls_proxy.port)
    publisher = make_publisher(url, ssl={"cafile": str(certificates["broker.pem"])})
    messages = [make_message(queue, b"x" * 1000) for _ in range(500)]
    assert publisher.publish(messages) == [ACCEPTED] * 500
    assert broker.depth(queue) == 500


@pytest.mark.parametrize("trusted", ["stranger.pem", None], ids=["another", "the system"])
def test_amqps_refuses_a_certificate_that_is_not_trusted(
    tls_proxy: TcpProxy, make_publisher: MakePublisher, certificates: dict[str, Path], trusted: str | None
):
    url = broker_url(scheme="amqps", port=tls_proxy.port)
    publisher = make_publisher(url, ssl={"cafile": str(certificates[trusted])} if trusted else None)
    error = only_error(publisher.publish([make_message("t")]), Verdict.UNANSWERED)
    assert "the broker's TLS certificate is refused: " in error
    assert "check cafile in the option ssl" in error


def test_a_client_certificate_is_presented(
    broker: Broker, make_publisher: MakePublisher, certificates: dict[str, Path]
):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates["stranger.pem"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates["broker.pem"], certificates["broker.key"])
    trust = {"cafile": str(certificates["broker.pem"])}
    own = {"certfile": str(certificates["stranger.pem"]), "keyfile": str(certificates["stranger.key"])}
    messages = [make_message(broker.queue())]
    with TcpProxy(context) as proxy:
        url = broker_url(scheme="amqps", port=proxy.port)
        assert verdicts(make_publisher(url, ssl=trust).publish(messages)) == [Verdict.UNANSWERED]
        assert make_publisher(url, ssl={**trust, **own}).publish(messages) == [ACCEPTED]


# Options


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, 'url is missing; set it to a string like "amqp://user:password@host:5672/vhost"'),
        ({"url": ""}, "url is missing"),
        ({"url": []}, "url is missing"),
        ({"url": None}, "url must be a string like"),
        ({"url": ["amqp://a", 5]}, "url must be a string like"),
        ({"url": "http://guest:s3cret@host"}, "url must begin with amqp:// or amqps://"),
        ({"url": "amqp:guest:s3cret@host"}, "url must begin with amqp:// or amqps://"),
        ({"url": "amqp://"}, "url cannot be read"),
        ({"url": "amqp://user@host"}, "url cannot be read"),
        ({"url": "amqp://user:s3cret"}, "url cannot be read"),
        ({"url": "amqp://user:s3/cret@host"}, "percent-encoded"),
        ({"url": "amqp://user:12/s3cret@host"}, "percent-encoded"),
        ({"url": "amqp://user:s3#cret@host"}, "percent-encoded"),
        ({"url": "amqp://user:12?s3cret@host"}, "percent-encoded"),
        ({"url": "amqp://user:s3cret@[host"}, "percent-encoded"),
        ({"url": "amqp://user:s3cret@host?color=red"}, "url has a query that cannot be read: Unknown URL parameter"),
        ({"url": "amqp://user:s3cret@host?heartbeat=x"}, "url has a query that cannot be read: Invalid heartbeat"),
        ({"url": "amqp://user:s3cret@host?ssl_options={}"}, "url must not set ssl_options; use the option ssl"),
        ({"url": "amqp://a?retry_delay=3"}, "url must not set retry_delay; use a list of urls"),
        ({"exchange": 5}, "exchange is 5; it must be a string of at most 255 bytes"),
        ({"exchange": "é" * 128}, "it must be a string of at most 255 bytes"),
        ({"key_header": ""}, "key_header is blank; name the header"),
        ({"key_header": None}, "key_header is None; it must be a string"),
        ({"exchange": "e", "declare_exchange": "queue"}, "must be None or one of direct, topic, fanout, headers"),
        ({"exchange": "e", "declare_exchange": True}, "must be None or one of direct, topic, fanout, headers"),
        ({"declare_exchange": "topic"}, "exchange is blank; name the exchange to declare"),
        ({"mandatory": 1}, "mandatory is 1; it must be True or False"),
        ({"persistent": None}, "persistent is None; it must be True or False"),
        ({"dangerously_disable_confirms": "no"}, "dangerously_disable_confirms is 'no'; it must be True or False"),
        ({"timeout": 0}, "timeout is 0; it must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is nan; it must be a number of seconds"),
        ({"blocked_timeout": "30"}, "blocked_timeout is '30'; it must be a number of seconds"),
        ({"blocked_timeout": True}, "blocked_timeout is True; it must be a number of seconds"),
        ({"heartbeat": -1}, "heartbeat is -1; it must be whole seconds from 1 to 65535, 0 for none, or None"),
        ({"heartbeat": 1.5}, "heartbeat is 1.5; it must be whole seconds"),
        ({"heartbeat": True}, "heartbeat is True; it must be whole seconds"),
        ({"ssl": {"cafile": "no-such-file.pem"}}, "ssl: cafile 'no-such-file.pem' cannot be loaded"),
        ({"ssl": {"verify": False}}, "ssl must be a dict with the keys cafile, certfile, keyfile"),
        ({"ssl": True}, "ssl must be a dict with the keys cafile, certfile, keyfile"),
        ({"ssl": {"keyfile": "key.pem"}}, "ssl has keyfile but no certfile"),
        ({"ssl": {}, "url": ["amqps://a", "amqp://b"]}, "ssl is set, but a url is without TLS"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_named_with_its_remedy(options: dict[str, Any], remedy: str):
    if options and "url" not in options:
        options = {"url": "amqp://user:s3cret@host", **options}
    with pytest.raises(ImproperlyConfigured) as raised:
        RabbitMQPublisher("shop", **options)
    assert remedy in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_an_unknown_option_is_a_type_error_that_names_it():
    with pytest.raises(TypeError, match="durable"):
        RabbitMQPublisher("shop", url="amqp://host", durable=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(("query", "expected"), [("", 7), ("heartbeat=3", 3)])
def test_the_heartbeat_of_the_url_takes_precedence(query: str, expected: int):
    publisher = RabbitMQPublisher("shop", url=f"amqp://host?{query}", heartbeat=7)
    assert publisher._options.hosts[0].heartbeat == expected
