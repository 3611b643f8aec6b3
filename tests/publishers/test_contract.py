"""The contract of a publisher, checked for each one on its real broker."""

import gc
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest

from django_outbox.brokers import Publisher
from django_outbox.brokers.outcomes import call_publisher
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind
from django_outbox.relay.sending.isolation import Isolation
from tests.publishers.subjects.aws import SQSSubject
from tests.publishers.subjects.base import BrokerSubject, Subject
from tests.publishers.subjects.http import HTTPSubject
from tests.publishers.subjects.kafka import KafkaSubject
from tests.publishers.subjects.local import MemorySubject
from tests.publishers.subjects.nats import JetStreamSubject
from tests.publishers.subjects.rabbitmq import RabbitMQSubject
from tests.publishers.subjects.redis import RedisSubject
from tests.support.claimed import make_message
from tests.support.waiting import eventually

BROKERS: dict[str, Callable[[], BrokerSubject]] = {
    "http": HTTPSubject,
    "kafka": KafkaSubject,
    "nats": JetStreamSubject,
    "rabbitmq": RabbitMQSubject,
    "redis": RedisSubject,
    "sqs": SQSSubject,
}
"""One subject for each way to publish: a FIFO queue and a topic of AWS share nearly all of SQS's (`test_aws`)."""

SUBJECTS: dict[str, Callable[[], Subject]] = {"memory": MemorySubject, **BROKERS}


@pytest.fixture(params=[*SUBJECTS])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    subject = SUBJECTS[request.param]()
    yield subject
    subject.close()


@pytest.fixture(params=[*BROKERS])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerSubject]:
    subject = BROKERS[request.param]()
    yield subject
    subject.close()


# Messages and outcomes


def test_each_message_is_accepted_and_messages_arrive_in_order(subject: Subject):
    messages = subject.messages(*(str(n).encode() for n in range(subject.many)))
    assert subject.publisher().publish(messages) == [ACCEPTED] * subject.many
    received = [(each.message_id, each.body) for each in subject.received()]
    sent = [(message.message_id, message.payload) for message in messages]
    assert received == sent if subject.order else sorted(received) == sorted(sent)


def test_an_empty_batch_has_no_outcomes(subject: Subject):
    assert list(subject.publisher().publish([])) == []
    assert list(subject.received()) == []


def test_messages_of_a_key_arrive_in_order_if_the_publisher_promises_it(subject: Subject):
    publisher = subject.publisher()
    count = min(subject.many, 700)
    messages = [make_message(subject.topic, str(n).encode(), key=f"key-{n % 7}") for n in range(count)]
    for batch in [messages] if publisher.keeps_order else [messages[start : start + 7] for start in range(0, count, 7)]:
        assert publisher.publish(batch) == [ACCEPTED] * len(batch)
    received = list(subject.received())
    for key in {message.key for message in messages}:
        sent = [message.payload for message in messages if message.key == key]
        assert [each.body for each in received if each.key == key] == sent


def test_payloads_arrive_unchanged(subject: Subject):
    payloads = [b'{"spaces":   1.50, "a": 1e5, "a": 2}', b"null", '{"n": "🦡 – ß\\u2028"}'.encode()]
    assert subject.publisher().publish(subject.messages(*payloads)) == [ACCEPTED] * 3
    assert sorted(each.body for each in subject.received()) == sorted(payloads)


def test_a_payload_of_the_largest_size_arrives_unchanged(subject: Subject):
    payload = b'"' + b"x" * (subject.largest - 2) + b'"'
    assert subject.publisher().publish(subject.messages(payload)) == [ACCEPTED]
    assert [each.body for each in subject.received()] == [payload]


def test_id_type_and_key_arrive(subject: Subject):
    (message,) = subject.messages(b"1", type="order.größe", key="Schlüssel-1")
    assert subject.publisher().publish([message]) == [ACCEPTED]
    (received,) = subject.received()
    assert (received.message_id, received.type, received.key) == (message.message_id, "order.größe", "Schlüssel-1")


def test_headers_arrive(broker: BrokerSubject):
    (message,) = broker.messages(b"1", headers={"traceparent": "00-1-2-01", "tenant": "acme"})
    assert broker.publisher().publish([message]) == [ACCEPTED]
    (received,) = broker.received()
    assert received.headers is not None
    assert {**received.headers, "traceparent": "00-1-2-01", "tenant": "acme"} == received.headers


def test_a_message_that_cannot_be_sent_does_not_hold_up_its_batch(broker: BrokerSubject):
    first, last = broker.messages(b"1", b"3")
    poison = broker.poison()
    accepted, refused, behind = publish_in_parts(broker.publisher(), [first, poison, last])
    assert accepted is behind is ACCEPTED
    assert refused is not None
    assert refused.kind is OutcomeKind.REJECTED
    assert refused.error
    assert refused.error_class
    assert sorted(each.body for each in broker.received()) == [b"1", b"3"]


def publish_in_parts(publisher: Publisher, messages: list[Message]) -> Sequence[Outcome | None]:
    """Publish as the relay does: a batch that the broker refuses as a whole, in ever smaller parts."""
    found = call_publisher(publisher.publish, messages)
    return found[0] if found[1] is None else Isolation(publisher.publish, messages, "default").run(found)


# Outages


def test_an_outage_leaves_every_message_unanswered_and_ends(broker: BrokerSubject):
    publisher = broker.publisher(**QUICK)
    # A busy machine may not answer in time.
    eventually(lambda: publisher.publish(broker.messages(b"1")) == [ACCEPTED])
    assert not publisher.prepare()
    broker.go_down()
    outcomes = publisher.publish(broker.messages(b"2", b"3"))
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNANSWERED] * 2
    assert all(outcome.error for outcome in outcomes)
    assert publisher.prepare()
    broker.come_back()
    eventually(lambda: not publisher.prepare(), "the publisher has connected again")
    eventually(lambda: publisher.publish(broker.messages(b"4")) == [ACCEPTED])
    assert {each.body for each in broker.received()} >= {b"1", b"4"}


QUICK = {"timeout": 2.0}
"""Options with which an outage is noticed soon."""


def test_a_broker_that_was_never_reached_is_unavailable_and_no_secret_is_shown(broker: BrokerSubject):
    broker.go_down()
    publisher = broker.with_secret()
    try:
        shown = [publisher.describe(), publisher.prepare()]
        (outcome,) = publisher.publish(broker.messages(b"1"))
        shown.append(outcome.error)
    finally:
        publisher.close()
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert all(shown)
    assert not [text for text in shown if broker.secret in text]


# Processes, threads and memory


def test_several_threads_may_publish_at_once(subject: Subject):
    publisher = subject.publisher()
    size = min(subject.many // 20, 50)
    batches = [[subject.messages(*[b"1"] * size) for _ in range(5)] for _ in range(4)]
    outcomes: list[Outcome] = []

    def work(own: list[list[Message]]) -> None:
        for batch in own:
            outcomes.extend(publisher.publish(batch))

    threads = [threading.Thread(target=work, args=[own], daemon=True) for own in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert outcomes == [ACCEPTED] * 20 * size
    sent = {message.message_id for own in batches for batch in own for message in batch}
    received = [each.message_id for each in subject.received()]
    assert set(received) == sent
    assert len(received) == 20 * size


def test_a_publisher_can_be_used_again_after_close(subject: Subject):
    publisher = subject.publisher()
    publisher.close()
    assert publisher.publish(subject.messages(b"1")) == [ACCEPTED]
    publisher.close()
    publisher.close()
    assert publisher.publish(subject.messages(b"2")) == [ACCEPTED]
    assert sorted(each.body for each in subject.received()) == [b"1", b"2"]


def test_close_leaves_no_threads_behind(subject: Subject):
    before = set(threading.enumerate())
    publisher = subject.make()
    publisher.publish(subject.messages(b"1"))
    publisher.close()
    eventually(lambda: set(threading.enumerate()) <= before, "all threads of the publisher have ended")


# Publishing from a child process is what is tested, in a process that has threads.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_can_publish_too(broker: BrokerSubject):
    publisher = broker.publisher()
    assert publisher.publish(broker.messages(b"1")) == [ACCEPTED]
    assert in_forked_process(lambda: publisher.publish(broker.messages(b"2")) == [ACCEPTED])
    assert publisher.publish(broker.messages(b"3")) == [ACCEPTED]
    assert sorted(each.body for each in broker.received()) == [b"1", b"2", b"3"]


def in_forked_process(work: Callable[[], bool]) -> bool:
    """Return what `work` returns in a child process, which is killed after half a minute."""
    child = os.fork()
    if child == 0:
        succeeded = False
        with suppress(BaseException):
            succeeded = work()
        os._exit(0 if succeeded else 1)
    killing = threading.Timer(30, os.kill, (child, signal.SIGKILL))
    killing.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        killing.cancel()


def traced_without_cycles() -> int:
    # A client may leave cycles, which are not kept.
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_a_publisher_keeps_nothing_of_delivered_messages(broker: BrokerSubject):
    publisher = broker.publisher()
    count = min(broker.many // 10, 100)
    batch = broker.messages(*[b'"' + b"x" * (1_000_000 // count) + b'"'] * count)
    publisher.publish(batch)
    tracemalloc.start()
    try:
        for _ in range(3):
            assert publisher.publish(batch) == [ACCEPTED] * count
        # One batch is a megabyte. Threads of a server in this process may hold the last messages for a moment.
        eventually(lambda: traced_without_cycles() < 500_000)
    finally:
        tracemalloc.stop()
