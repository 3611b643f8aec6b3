"""What readers return to a queue: nothing is lost, although a quorum queue drops what was returned too often."""

import logging
from collections.abc import Iterator

import pytest

from django_outbox.inbox.management.commands.run_inbox import check_consumers
from tests.conftest import ALIASES
from tests.inbox.conftest import payloads, read_all, running
from tests.inbox.sources.rabbitmq import RabbitMQSource
from tests.support.rabbitmq.tools import Broker
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

LIMIT = 10
"""The delivery limit of the queues; half of RabbitMQ 4's default."""

OFTEN = LIMIT + 4
"""Enough returns to lose a message that each of them counts."""


@pytest.fixture(params=[LIMIT])
def source(request: pytest.FixtureRequest) -> Iterator[RabbitMQSource]:
    """A quorum queue without dead letters, and with that delivery limit."""
    source = RabbitMQSource()
    source.name = source.broker.queue("quorum", delivery_limit=request.param)
    yield source
    source.close()


def fill(source: RabbitMQSource, count: int) -> None:
    source.send(*range(count))
    eventually(lambda: source.unsettled() == count)


def count_returns(source: RabbitMQSource) -> int:
    """Return how many times the first message of the queue was returned; this returns it once more."""
    method, properties, _ = source.broker.channel.basic_get(source.name)
    assert method is not None
    assert properties is not None
    # Since RabbitMQ 4.3, a nack does not count towards the delivery limit; a reject does.
    source.broker.channel.basic_reject(method.delivery_tag or 0, requeue=True)
    return int(str((properties.headers or {}).get("x-delivery-count", 0)))


def test_connections_that_break_lose_nothing(source, make_inbox):
    """As after a kill, but quicker: everything that was delivered is returned."""
    fill(source, 5000)
    for _ in range(OFTEN):
        consumer = make_inbox(batch_bytes=1).consumers[0]
        consumer.open()
        for _ in range(3):
            batch = eventually(lambda: consumer.receive(1))  # noqa: B023
            consumer.settle(batch, ())
        eventually(lambda: consumer.receive(1))  # noqa: B023
        consumer.close()
    eventually(lambda: source.unsettled() == 5000 - 3 * OFTEN)
    assert count_returns(source) < 5


def test_readers_that_crash_again_and_again_return_one_message_only(source, make_inbox, writing):
    writing.error = SystemExit("crash")
    fill(source, 50)
    with running(make_inbox()):
        eventually(lambda: writing.attempts > OFTEN)
    # The first message is to blame, for all that RabbitMQ knows.
    eventually(lambda: source.unsettled() >= 48)


def test_a_paused_consumer_and_a_check_return_nothing(source, make_inbox):
    source.send(*range(5))
    read_all(make_inbox(), source)
    fill(source, 50)
    for _ in range(OFTEN):
        assert [finding.problem for finding in check_consumers(make_inbox().consumers)] == [""]
        with running(make_inbox(max_backlog=1)) as inbox:
            eventually(lambda: inbox.paused)
    eventually(lambda: source.unsettled() == 50)
    assert count_returns(source) == 0


@pytest.mark.parametrize("source", [50], indirect=True)
def test_a_message_that_was_returned_often_is_logged_with_the_remedy(source, make_inbox, caplog):
    caplog.set_level(logging.WARNING, "django_outbox")
    fill(source, 1)
    for _ in range(9):
        count_returns(source)
    consumer = make_inbox().consumers[0]
    consumer.open()
    eventually(lambda: consumer.receive(1))
    consumer.close()
    assert "delivery limit" not in caplog.text
    eventually(lambda: source.unsettled() == 1)
    read_all(make_inbox(), source)
    assert "of queue" in caplog.text
    assert f"{source.name!r} has been returned to the queue 10 times" in caplog.text
    assert "raise delivery-limit with a policy" in caplog.text
    assert payloads("default") == [0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("classic", [1, 2, 3, 4, 5, 6, 7, 8]), ("quorum", [3, 4, 5, 6, 1, 2, 7, 8])],
)
def test_a_quorum_queue_puts_what_a_second_reader_leaves_behind_the_rest(kind: str, expected: list[int]):
    """A fact of RabbitMQ that limits what the inbox promises."""
    with Broker() as broker:
        queue = broker.queue(kind)
        for number in range(1, 9):
            broker.channel.basic_publish("", queue, str(number))

        def read(count: int) -> list[int]:
            eventually(lambda: broker.depth(queue) == 8)
            with Broker() as reader:
                bodies = [reader.channel.basic_get(queue)[2] for _ in range(count)]
            return [int(body) for body in bodies if body]

        assert read(6) == [1, 2, 3, 4, 5, 6]
        assert read(2) == [1, 2]
        assert read(8) == expected
