"""The contract of a publisher, checked for each one."""

import io
import random
import string
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from django.conf import settings

from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.publishers import memory
from django_outbox.publishers.base import Publisher
from django_outbox.publishers.console import ConsolePublisher
from django_outbox.publishers.memory import MemoryPublisher
from django_outbox.publishers.rabbitmq import RabbitMQPublisher
from tests.support.rabbitmq_tools import Broker, make_message


@dataclass(frozen=True)
class Subject:
    """A publisher, the topic to send to, and the messages received there, in order, by id and body."""

    publisher: Publisher
    topic: str
    received: Callable[[], list[tuple[str, bytes]]]

    def messages(self, *payloads: bytes) -> list[Message]:
        return [make_message(self.topic, payload) for payload in payloads]


@pytest.fixture(params=["memory", "console", "rabbitmq"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    publisher: Publisher
    if request.param == "memory":
        memory.published.clear()
        publisher = MemoryPublisher("default")
        yield Subject(publisher, "", lambda: [(message.message_id, message.payload) for message in memory.published])
        memory.published.clear()
    elif request.param == "console":
        stream = io.StringIO()
        publisher = ConsolePublisher("default", stream=stream)
        yield Subject(publisher, "", lambda: [_read_line(line) for line in stream.getvalue().splitlines()])
    else:
        with Broker() as broker:
            queue = broker.queue()
            publisher = RabbitMQPublisher("default", url=settings.AMQP_URL)
            yield Subject(
                publisher,
                queue,
                lambda: [(str(each.properties.message_id), each.body) for each in broker.take(queue)],
            )
            publisher.close()


def _read_line(line: str) -> tuple[str, bytes]:
    start, _, payload = line.partition(', "payload": ')
    return start.partition('"message_id": "')[2][:36], payload[:-1].encode()


def test_each_message_is_accepted_and_messages_arrive_in_order(subject: Subject):
    messages = subject.messages(*(str(n).encode() for n in range(1500)))
    assert subject.publisher.publish(messages) == [ACCEPTED] * 1500
    assert subject.received() == [(message.message_id, message.payload) for message in messages]


def test_an_empty_batch_has_no_outcomes(subject: Subject):
    assert list(subject.publisher.publish([])) == []
    assert subject.received() == []


@pytest.mark.parametrize(
    "payload",
    [
        '{"n": "🦡 – ß\\u2028"}'.encode(),
        b'"' + b"x" * 200_000 + b'"',
        f'"{"".join(random.Random(7).choices(string.ascii_letters + string.digits, k=3_000))}"'.encode(),
        b"null",
        b'{"spaces":   1.50, "a": 1e5, "a": 2}',
    ],
    ids=["emoji", "200 kB", "3 kB random", "null", "spelling"],
)
def test_a_payload_arrives_unchanged(subject: Subject, payload: bytes):
    messages = subject.messages(b"1", payload, b"2")
    assert subject.publisher.publish(messages) == [ACCEPTED] * 3
    assert [body for _, body in subject.received()] == [b"1", payload, b"2"]


def test_several_threads_may_publish_at_once(subject: Subject):
    batches = [[subject.messages(*[b"1"] * 125) for _ in range(10)] for _ in range(4)]
    outcomes: list[Outcome] = []

    def work(own: list[list[Message]]) -> None:
        for batch in own:
            outcomes.extend(subject.publisher.publish(batch))

    threads = [threading.Thread(target=work, args=[own], daemon=True) for own in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert outcomes == [ACCEPTED] * 5000
    sent = {message.message_id for own in batches for batch in own for message in batch}
    received = [message_id for message_id, _ in subject.received()]
    assert set(received) == sent
    assert len(received) == 5000


def test_a_publisher_can_be_used_again_after_close(subject: Subject):
    subject.publisher.close()
    assert subject.publisher.publish(subject.messages(b"1")) == [ACCEPTED]
    subject.publisher.close()
    subject.publisher.close()
    assert subject.publisher.publish(subject.messages(b"2")) == [ACCEPTED]
    assert [body for _, body in subject.received()] == [b"1", b"2"]


def test_the_contract_imports_nothing_but_messages():
    code = "import sys, django_outbox.publishers.base; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert {name for name in printed.split() if name.partition(".")[0] in ("django", "django_outbox", "pika")} == {
        "django_outbox",
        "django_outbox.messages",
        "django_outbox.publishers",
        "django_outbox.publishers.base",
    }
