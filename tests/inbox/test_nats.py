"""The JetStream consumer: its options, its durable consumer, and what it reads."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from django_outbox.brokers import Incoming, Unavailable
from django_outbox.brokers.nats import JetStreamConsumer
from django_outbox.brokers.nats.encoding import NatsDelivery, origin_of, read_delivery
from django_outbox.exceptions import RelayUnavailable
from tests.inbox.conftest import QUICK, MakeInbox, running
from tests.inbox.sources.nats import JetStreamSource
from tests.support.nats.server import NatsServer
from tests.support.nats.tools import Nats, nats_port, nats_url
from tests.support.proxies import Proxies
from tests.support.publishers import closing_all
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.nats.fixtures"]

MakeConsumer = Callable[..., JetStreamConsumer]

ACK_SUBJECT = b"$JS.ACK.SHOP.billing.1.7.9.1767323045000000000.0"


@pytest.fixture
def source() -> Iterator[JetStreamSource]:
    with closing(JetStreamSource()) as source:
        yield source


@pytest.fixture
def make_consumer() -> Iterator[MakeConsumer]:
    def construct(stream: str, **options: Any) -> JetStreamConsumer:
        given = {"servers": nats_url(), "stream": stream, "durable": "billing", **options}
        return JetStreamConsumer("billing", **given)

    with closing_all(construct) as make:
        yield make


def is_settled(nats: Nats, stream: str) -> bool:
    info = nats.run(lambda: nats.js.consumer_info(stream, "billing"))
    return not info.num_pending and not info.num_ack_pending


def make_stream(nats: Nats, ack_wait: float = 1.0, **config: Any) -> str:
    """Create a stream with a durable consumer, and return its name."""
    stream = nats.stream()
    given = {"durable_name": "billing", "ack_policy": AckPolicy.EXPLICIT, "ack_wait": ack_wait, **config}
    nats.run(lambda: nats.js.add_consumer(stream, ConsumerConfig(**given)))
    return stream


def receive(consumer: JetStreamConsumer, count: int) -> list[Incoming]:
    """Receive that many messages, in batches, or a few more."""
    found: list[Incoming] = []

    def has_all() -> bool:
        found.extend(consumer.receive(0.05))
        return len(found) >= count

    eventually(has_all)
    return found


def put(nats: Nats, stream: str, *bodies: bytes, **headers: str) -> None:
    for body in bodies:
        nats.publish(stream, body, headers)


# The durable consumer


def test_a_consumer_that_is_only_opened_changes_nothing(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats)
    put(nats, stream, b"1")
    consumer = make_consumer(stream)
    before = nats.run(lambda: nats.js.consumer_info(stream, "billing")).delivered
    consumer.open()
    time.sleep(0.3)
    consumer.close()
    assert nats.run(lambda: nats.js.consumer_info(stream, "billing")).delivered == before


@pytest.mark.parametrize(
    "config", [{"ack_policy": AckPolicy.NONE}, {"max_deliver": 3}, {"headers_only": True}], ids=str
)
def test_a_durable_consumer_that_loses_messages_is_not_used(
    nats: Nats, make_consumer: MakeConsumer, config: dict[str, Any]
):
    stream = make_stream(nats, **config)
    with pytest.raises(Unavailable, match="loses messages: it must have ack_policy explicit, max_deliver -1, and no"):
        make_consumer(stream).open()


def test_a_push_consumer_is_not_used(nats: Nats, make_consumer: MakeConsumer):
    consumer = make_consumer(make_stream(nats, deliver_subject="outbox-test-push"))
    consumer.open()
    with pytest.raises(Unavailable, match=r"refuses requests \(NATS/1.0 409 Consumer is push based\)"):
        consumer.receive(60)


def test_a_missing_stream_or_durable_consumer_is_named(nats: Nats, make_consumer: MakeConsumer):
    with pytest.raises(Unavailable, match=r"consumer 'billing' of stream '.*': JetStream: consumer not found"):
        make_consumer(nats.stream()).open()
    with pytest.raises(Unavailable, match=r"stream 'NONE': JetStream: stream not found .* correct the options stream"):
        make_consumer("NONE").open()


def test_a_durable_consumer_that_is_deleted_ends_the_connection(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats)
    consumer = make_consumer(stream)
    put(nats, stream, b"0")
    consumer.open()
    assert [message.body for message in receive(consumer, 1)] == [b"0"]
    nats.run(lambda: nats.js.delete_consumer(stream, "billing"))

    def has_ended() -> bool:
        try:
            consumer.receive(0.05)
        except Unavailable as error:
            return "consumer 'billing'" in str(error)
        return False

    eventually(has_ended, "the consumer is unavailable")


# Permissions


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ("no-requests", "permit the user to publish to $JS.API.CONSUMER.MSG.NEXT.{stream}.billing"),
        ("no-acks", "permit the user to publish to $JS.ACK.>"),
    ],
)
def test_a_missing_permission_is_an_error_with_the_remedy(
    guarded: NatsServer, guarded_nats: Nats, make_consumer: MakeConsumer, user: str, text: str
):
    stream = make_stream(guarded_nats, ack_wait=60.0)
    put(guarded_nats, stream, b"{")
    consumer = make_consumer(stream, servers=guarded.url_for(f"{user}:x"))
    consumer.open()

    def read() -> str:
        try:
            consumer.settle(consumer.receive(0.05), ())
        except Unavailable as error:
            return str(error)
        return ""

    eventually(lambda: text.format(stream=stream) in read())


@pytest.mark.django_db(transaction=True)
def test_an_outage_lasts_while_a_connection_waits_for_its_own_messages(
    guarded: NatsServer, guarded_nats: Nats, make_inbox: MakeInbox, caplog: pytest.LogCaptureFixture
):
    """Acknowledgements are refused, so each connection waits for the messages of the last one."""
    caplog.set_level("INFO", logger="django_outbox")
    stream = make_stream(guarded_nats, ack_wait=2.0)
    put(guarded_nats, stream, b"1")
    arguments = {"limits": replace(QUICK, proof_time=1.0)}
    with running(make_inbox(servers=guarded.url_for("no-acks:x"), stream=stream, arguments=arguments)) as inbox:
        eventually(lambda: caplog.text.count("reads stream") >= 3)
        assert inbox.outages
    assert caplog.text.count("is unavailable: ") == 1
    assert "is available again" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_an_inbox_that_ends_when_idle_gives_up_if_it_may_not_acknowledge_however_many_messages_it_has_in_hand(
    guarded: NatsServer, guarded_nats: Nats, make_inbox: MakeInbox
):
    stream = make_stream(guarded_nats, ack_wait=0.2)
    put(guarded_nats, stream, *[b"%d" % number for number in range(20)])
    options = {"servers": guarded.url_for("no-acks:x"), "stream": stream, "batch_size": 1}
    with pytest.raises(RelayUnavailable, match=r"permit the user to publish to \$JS.ACK.>"):
        make_inbox(**options, arguments={"idle_exit": 60}).run()


# Settling


def test_a_message_in_hand_is_not_delivered_again_however_long_it_takes(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats, ack_wait=2.0)
    put(nats, stream, b"1")
    consumer = make_consumer(stream)
    consumer.open()
    held = receive(consumer, 1)
    count = nats.run(lambda: nats.js.consumer_info(stream, "billing")).delivered.consumer_seq
    # As long as twice the wait; a second delivery would come into the same connection.
    assert consumer.receive(4) == []
    assert nats.run(lambda: nats.js.consumer_info(stream, "billing")).delivered.consumer_seq == count
    consumer.settle(held, ())
    eventually(lambda: is_settled(nats, stream))


def test_a_connection_that_does_not_close_properly_leaves_its_messages_to_another_one_in_order(
    nats: Nats, make_consumer: MakeConsumer, proxies: Proxies
):
    stream, proxy = make_stream(nats), proxies.open(nats_port())
    put(nats, stream, *[b"%d" % n for n in range(20)])
    dying = make_consumer(stream, servers=nats_url(port=proxy.port), batch_size=3)
    dying.open()
    settled = receive(dying, 3)
    dying.settle(settled, ())
    count = len(settled)
    eventually(lambda: nats.run(lambda: nats.js.consumer_info(stream, "billing")).ack_floor.stream_seq == count)
    proxy.go_silent()
    taking = make_consumer(stream)
    taking.open()
    assert [int(message.body) for message in receive(taking, 20 - count)] == [*range(count, 20)]


def test_messages_in_hand_are_given_back_when_the_consumer_is_closed(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats, ack_wait=600.0)
    put(nats, stream, b"1", b"2")
    consumer = make_consumer(stream)
    consumer.open()
    receive(consumer, 2)
    consumer.close()
    subscription = nats.run(lambda: nats.js.pull_subscribe_bind("billing", stream))
    assert [each.data for each in nats.run(lambda: subscription.fetch(2, timeout=60))] == [b"1", b"2"]


def test_a_rejected_message_is_not_redelivered(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats)
    put(nats, stream, b"1")
    consumer = make_consumer(stream)
    consumer.open()
    (message,) = receive(consumer, 1)
    consumer.settle([message], [message.tag])
    eventually(lambda: is_settled(nats, stream))
    consumer.close()
    consumer.open()
    assert not consumer.receive(0.5)


# What is read


def read(*lines: bytes, body: bytes = b"{}") -> Incoming:
    headers = b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))
    return read_delivery(NatsDelivery(b"orders", ACK_SUBJECT, headers, body), 1)


def test_a_cloudevent_of_another_producer_is_identified_by_its_id_and_source():
    event = read(b"CE-SpecVersion: 1.0", b"ce-id: 7", b"ce-source: /a%20b", b"ce-type: order.paid", b"ce-tenant: acme")
    assert (event.message_id, event.type) == ("/a b 7", "order.paid")
    assert event.headers == {"ce-source": "/a b", "ce-tenant": "acme"}
    body = b'{"specversion": "1.0", "id": "7", "source": "/b", "type": "order.paid", "data": {"n": 1}}'
    structured = read(b"content-type: application/cloudevents+json", body=body)
    assert (structured.message_id, structured.type, structured.body) == ("/b 7", "order.paid", b'{"n": 1}')


def test_a_subject_of_odd_characters_holds_up_no_other_message(nats: Nats, make_consumer: MakeConsumer):
    stream = make_stream(nats)
    odd = [b"a\x0bb", b"a\x0cb", b"a\x00b", b"\xff", "größe\u2028".encode(), b"x" * 3000]
    subjects = [f"{stream}.".encode() + each for each in odd]
    for subject in subjects:
        for command in (b"PUB %b 1\r\n1\r\n" % subject, b"HPUB %b 12 13\r\nNATS/1.0\r\n\r\n2\r\n" % subject):
            nats.run(partial(nats.client._send_command, command))
    put(nats, stream, b"3")
    consumer = make_consumer(stream)
    consumer.open()
    found = receive(consumer, 2 * len(odd) + 1)
    texts = [subject.decode("utf-8", "replace") for subject in subjects]
    expected = [(body, text) for text in texts for body in (b"1", b"2")]
    assert [(message.body, message.topic) for message in found] == [*expected, (b"3", stream)]
    consumer.settle(found, ())
    eventually(lambda: is_settled(nats, stream))


def test_the_id_of_another_producer_is_the_nats_msg_id():
    assert read(b"Nats-Msg-Id: 7").message_id == "7"


def test_headers_that_cannot_be_decoded_are_a_problem():
    assert "its headers cannot be decoded" in read(b"a: \xff").problem


def test_where_a_message_comes_from_is_in_the_subject_of_its_acknowledgement():
    short = ACK_SUBJECT
    # With a domain, as servers since 2.10 send it.
    long = b"$JS.ACK.hub.AbCdEf.SHOP.billing.1.7.9.1767323045000000000.0.token"
    assert origin_of(short) == origin_of(long) == (b"SHOP", b"billing", b"7", b"1767323045000000000")
