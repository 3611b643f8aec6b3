"""While the helpers are active, no publisher is real, whatever the settings say, in any thread."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import TestCase, override_settings

from django_outbox import enqueue
from django_outbox.brokers import memory
from django_outbox.brokers.memory import MemoryPublisher
from django_outbox.brokers.outcomes import prepare_publisher
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.registry import make_publisher
from django_outbox.celery import OutboxCelery
from django_outbox.handlers import handler
from django_outbox.handlers.registry import registry
from django_outbox.relay import Relay
from django_outbox.testing import Outbox, OutboxTestMixin, memory_publishers
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS
from tests.support.effects import HANDLERS
from tests.support.ports import free_port
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

FIRST = {"PUBLISHERS": {"default": SCRIPTED}}
SECOND = {"PUBLISHERS": {"default": {**SCRIPTED, "OPTIONS": {"colour": "green"}}}}


@pytest.fixture
def port() -> Iterator[int]:
    """A port to which nothing connects during the test."""
    # Not one of the system's choice, which clients of a closed proxy may still try to reach.
    with socket.create_server(("127.0.0.1", free_port())) as listening:
        listening.setblocking(False)
        yield listening.getsockname()[1]
        with pytest.raises(BlockingIOError):
            listening.accept()


def is_in_memory() -> bool:
    return isinstance(make_publisher("default"), MemoryPublisher)


@override_settings(OUTBOX=FIRST)
def test_publishers_are_in_memory_exactly_while_a_block_is_open():
    with suppress(LookupError), memory_publishers():
        with memory_publishers(), override_settings(OUTBOX=SECOND):
            assert is_in_memory()
        assert is_in_memory()
        raise LookupError
    assert not is_in_memory()


@override_settings(OUTBOX=FIRST)
def test_blocks_of_two_threads_may_overlap():
    first, second = memory_publishers(), memory_publishers()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_in_memory()
    second.__exit__(None, None, None)
    assert not is_in_memory()


def place_order(id: int) -> None:
    with transaction.atomic():
        enqueue("order.created", {"id": id}, key=f"order-{id}")


@pytest.mark.django_db(transaction=True)
def test_a_relay_that_runs_already_publishes_to_memory_until_the_block_ends():
    with Script() as script, override_settings(OUTBOX=FIRST), relays_in_threads(limits=QUICK) as start:
        relay = start(poll_interval=0.05)
        place_order(1)
        eventually(lambda: relay.tally.processed == 1)
        with memory_publishers():
            place_order(2)
            eventually(lambda: relay.tally.processed == 2)
            assert [message.key for message in memory.published] == ["order-2"]
        place_order(3)
        eventually(lambda: relay.tally.processed == 3)
    assert [message.key for batch in script.batches for message in batch] == ["order-1", "order-3"]


def test_a_publisher_that_was_made_earlier_neither_connects_nor_checks_its_broker(port: int):
    publisher = RabbitMQPublisher("default", url=f"amqp://127.0.0.1:{port}/%2F", exchange="none")
    with memory_publishers():
        assert prepare_publisher(publisher) == ""


def real(port: int) -> dict[str, Any]:
    """Settings whose brokers are at this port."""
    rabbitmq = {
        "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": f"amqp://127.0.0.1:{port}/%2F", "exchange": "none"},
    }
    redis = {
        "BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher",
        "OPTIONS": {"url": f"redis://127.0.0.1:{port}/0"},
    }
    return {
        "PUBLISHERS": {**PUBLISHERS, "default": rabbitmq, "copies": redis, "handlers": HANDLERS},
        "ROUTES": {"order.refused": ["handlers"]},
        "RETRY": {"MAX_ATTEMPTS": 1},
        "DEAD_LETTER_PUBLISHER": "copies",
    }


def drain_in_a_thread(earlier: Relay) -> None:
    def work() -> None:
        with Relay() as relay:
            relay.drain()
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


WAYS: dict[str, Callable[[Relay], object]] = {
    "helper": lambda earlier: Outbox(after=0).drain(raise_failures=False),
    "a relay that was made earlier": lambda earlier: earlier.drain(max_seconds=5),
    "command": lambda earlier: call_command("run_outbox", "--drain"),
    "check": lambda earlier: (call_command("run_outbox", "--check"), earlier.drain(max_seconds=5)),
    "thread": drain_in_a_thread,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAYS)
def test_no_way_to_deliver_reaches_a_broker(way: str, port: int, monkeypatch: pytest.MonkeyPatch):
    app: Any = OutboxCelery("tested", set_as_current=False, broker=f"redis://127.0.0.1:{port}/0")
    monkeypatch.setattr(celery_app, "app", app)
    project = real(port)
    with override_settings(OUTBOX=project):
        earlier = Relay()
    with memory_publishers(), registry.isolated(), override_settings(OUTBOX=project):

        @handler("order.refused")
        def refuse(payload: Any, message: Any) -> None:
            raise LookupError

        with transaction.atomic():
            enqueue("order.created", {"id": 7})
            enqueue("order.refused", {"id": 7})
            app.send_task("elsewhere.note", (7,))
        WAYS[way](earlier)
        # The copy of the refused one goes to the dead-letter publisher.
        assert {message.type for message in memory.published} == {"order.created", "order.refused", "elsewhere.note"}
    app.close()


@override_settings(OUTBOX=FIRST)
class DecoratedTests(OutboxTestMixin, TestCase):
    """A user's test case."""

    @override_settings(OUTBOX=SECOND)
    def test_a_decorated_method(self) -> None:
        place_order(7)
        self.outbox.drain()
        assert [message.key for message in self.outbox.published] == ["order-7"]
