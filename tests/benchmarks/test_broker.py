"""The benchmarks and the broker: bare sockets of the limit, publishers of the ladder's first steps, queues."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from tests.benchmarks.broker_limit import CONFIRM, Confirms, encode_blocks, measure_limit
from tests.benchmarks.measuring import BenchmarkError
from tests.benchmarks.messages import make_messages
from tests.benchmarks.plain_pika import BatchPublisher, BlockingPublisher, Row
from tests.benchmarks.queues import Queues
from tests.support.shop import broker_channel


@pytest.fixture
def queues() -> Iterator[Queues]:
    with Queues(settings.AMQP_URL, "classic", 2) as queues:
        yield queues


def bodies(queues: Queues) -> list[Any]:
    """Take all messages out of the queues."""
    found = []
    with broker_channel() as channel:
        for topic in queues.topics:
            while True:
                method, _, body = channel.basic_get(f"{queues.exchange}-{topic}", auto_ack=True)
                if method is None:
                    break
                found.append(json.loads(body))
    return found


@pytest.mark.django_db
@pytest.mark.parametrize("size", [100, 300_000], ids=["small", "larger than a frame"])
@pytest.mark.parametrize("connections", [1, 3])
def test_the_limit_sends_the_messages_that_the_outbox_would_send(queues: Queues, size: int, connections: int):
    made = list(make_messages(7 if size > 1000 else 250, seed=1, size=size, topics=queues.topics))
    blocks = encode_blocks(queues.exchange, made)
    assert measure_limit(settings.AMQP_URL, queues, blocks, connections=connections, window=50) > 0
    found = sorted(bodies(queues), key=lambda payload: int(payload["id"]))
    assert found == [message.payload for message in made]


def test_a_message_that_the_broker_refuses_ends_the_measurement(queues: Queues):
    blocks = encode_blocks(queues.exchange, make_messages(3, seed=1, topics=["nowhere"]))
    with pytest.raises(BenchmarkError, match="did not accept a message"):
        measure_limit(settings.AMQP_URL, queues, blocks, connections=1, window=50)


def confirm(tag: int, *, multiple: bool = False, method: int = 80) -> bytes:
    return CONFIRM.pack(1, 1, 13, 60, method, tag, multiple, 0xCE)


def test_confirms_are_counted_once_in_any_order_and_however_the_bytes_arrive():
    confirms = Confirms(9)
    data = confirm(5) + confirm(3) + confirm(4, multiple=True) + confirm(2, multiple=True) + confirm(4) + confirm(9)
    for byte in data:
        confirms.feed(bytes([byte]))
    assert confirms.count == 6
    confirms.feed(confirm(8, multiple=True))
    assert confirms.count == 9


def test_a_nack_is_not_a_confirm():
    with pytest.raises(BenchmarkError):
        Confirms(1).feed(confirm(1, method=120))


def make_row(topic: str, number: int) -> Row:
    payload = json.dumps({"id": number})
    return {"topic": topic, "payload": payload, "message_id": uuid.uuid4(), "type": "t", "occurred_at": timezone.now()}


@pytest.mark.parametrize("publisher_class", [BlockingPublisher, BatchPublisher])
def test_a_plain_publisher_has_sent_everything_once_it_has_waited(
    queues: Queues, publisher_class: type[BatchPublisher]
):
    publisher = publisher_class(settings.AMQP_URL, queues.exchange)
    rows = [make_row(queues.topics[0], number) for number in range(20)]
    waits = [publisher.submit(rows[:10]), publisher.submit(rows[10:])]
    for wait in waits:
        wait()
    publisher.close()
    assert queues.count() == 20
    assert [payload["id"] for payload in bodies(queues)] == list(range(20))


def test_a_plain_publisher_reports_a_message_that_reached_no_queue(queues: Queues):
    publisher = BatchPublisher(settings.AMQP_URL, queues.exchange)
    wait = publisher.submit([make_row("nowhere", 1)])
    with pytest.raises(BenchmarkError, match="reached no queue"):
        wait()
    publisher.close()


def test_queues_with_another_number_of_messages_than_delivered_void_the_figures(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tests.benchmarks.queues.PATIENCE", 0.1)
    queues.expect(0)
    with pytest.raises(BenchmarkError, match="1 messages were delivered, and the queues hold 0"):
        queues.expect(1)
