"""While the helpers are active, no publisher is real, whatever the settings say, in any thread."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import enqueue
from django_outbox.brokers import memory
from django_outbox.brokers.memory import MemoryPublisher
from django_outbox.brokers.outcomes import prepare_publisher
from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.registry import make_publisher
from django_outbox.testing import memory_publishers
from tests.support.children import ROOT
from tests.support.ports import free_port
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

FIRST = {"PUBLISHERS": {"default": SCRIPTED}}
SECOND = {"PUBLISHERS": {"default": {**SCRIPTED, "OPTIONS": {"colour": "green"}}}}


class Broker:
    """A port that closes each connection, and counts them."""

    def __init__(self) -> None:
        self.connections = 0
        # Not one of the system's choice, which clients of a closed proxy may still try to reach.
        self._socket = socket.create_server(("127.0.0.1", free_port()))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                if connection.recv(5) == b"close":
                    return
            self.connections += 1

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"close")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


class Raised(Exception):
    pass


@contextmanager
def raising() -> Iterator[None]:
    with suppress(Raised):
        yield
        raise Raised


BLOCKS: dict[str, Any] = {
    "helpers": memory_publishers,
    "settings": lambda: override_settings(OUTBOX=SECOND),
    "the settings as before": lambda: override_settings(OUTBOX=FIRST),
    "an exception": raising,
}


@given(st.lists(st.sampled_from([*BLOCKS, "end", "end"]), max_size=12))
def test_publishers_are_in_memory_exactly_while_a_block_is_open(steps: list[str]):
    open_blocks: list[tuple[str, ExitStack]] = []

    def is_in_memory() -> bool:
        return isinstance(make_publisher("default"), MemoryPublisher)

    with override_settings(OUTBOX=FIRST):
        for step in [*steps, *["end"] * len(steps)]:
            if step == "end":
                if open_blocks:
                    open_blocks.pop()[1].close()
            else:
                stack = ExitStack()
                stack.enter_context(BLOCKS[step]())
                open_blocks.append((step, stack))
            assert is_in_memory() == ("helpers" in [name for name, _ in open_blocks])
        assert not is_in_memory()


def test_blocks_of_two_threads_may_overlap():
    with override_settings(OUTBOX=FIRST):
        first, second = memory_publishers(), memory_publishers()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert isinstance(make_publisher("default"), MemoryPublisher)
        second.__exit__(None, None, None)
        assert not isinstance(make_publisher("default"), MemoryPublisher)


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


def test_a_publisher_that_was_made_earlier_neither_connects_nor_checks_its_broker(broker: Broker):
    publisher = RabbitMQPublisher("default", url=f"amqp://127.0.0.1:{broker.port}/%2F", exchange="none")
    with memory_publishers():
        assert prepare_publisher(publisher) == ""
    assert broker.connections == 0


SETTINGS = """
    import os

    import django

    SECRET_KEY = "x"
    USE_TZ = True
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "TEST": {"NAME": TEST_NAME}}}
    INSTALLED_APPS = ["django_outbox"]
    # Django 5.2 has no tasks.
    if django.VERSION >= (6, 0):
        INSTALLED_APPS += ["django_outbox.contrib.django_tasks"]
    ROOT_URLCONF = "project_settings"
    PORT = os.environ["BROKER_PORT"]

    def outbox(suffix):
        rabbitmq = {
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
            "OPTIONS": {"url": f"amqp://127.0.0.1:{PORT}/{suffix}", "exchange": "none"},
        }
        redis = {
            "BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher",
            "OPTIONS": {"url": f"redis://127.0.0.1:{PORT}/0"},
        }
        celery = {
            "BACKEND": "django_outbox.brokers.celery.CeleryPublisher",
            "OPTIONS": {"app": "project_celery:app"},
        }
        handlers = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
        return {
            "PUBLISHERS": {"default": rabbitmq, "copies": redis, "celery": celery, "handlers": handlers},
            "ROUTES": {"order.refused": ["handlers"]},
            "RETRY": {"MAX_ATTEMPTS": 1},
            "DEAD_LETTER_PUBLISHER": "copies",
        }

    OUTBOX = outbox("first")
    OTHER = outbox("second")
    TASKS = {"default": {"BACKEND": "django_outbox.contrib.django_tasks.OutboxBackend"}}
    urlpatterns = []
"""

CELERY = """
    import os
    from django_outbox.celery import OutboxCelery

    app = OutboxCelery("project", broker=f"redis://127.0.0.1:{os.environ['BROKER_PORT']}/0")

    @app.task
    def note(value): ...
"""

TESTS = """
    import threading

    import django
    import pytest
    from asgiref.sync import sync_to_async
    from django.core.management import call_command
    from django.db import connections, transaction
    from django.test import TestCase, TransactionTestCase, override_settings

    from django_outbox import enqueue
    from django_outbox.handlers import handler
    from django_outbox.relay import Relay
    from django_outbox.testing import OutboxTestMixin
    from project_celery import app, note
    from project_settings import OTHER

    MADE_EARLIER = Relay()

    def enqueue_all():
        @handler("order.refused")
        def refuse(payload, message):
            raise LookupError

        with transaction.atomic():
            enqueue("order.created", {"id": 7})
            enqueue("order.refused", {"id": 7})
            note.delay(7)
            app.send_task("elsewhere.note", (7,))

    def deliver_all(outbox):
        enqueue_all()
        outbox.drain(raise_failures=False)
        assert {message.type for message in outbox.published} == {
            "order.created", "order.refused", note.name, "elsewhere.note",
        }

    class Decorated:
        @override_settings(OUTBOX=OTHER)
        def test_method(self):
            deliver_all(self.outbox)

        def test_earlier_relay(self):
            enqueue_all()
            MADE_EARLIER.drain(max_seconds=5)
            assert "order.created" in {message.type for message in self.outbox.published}

        def test_command(self):
            with self.settings(OUTBOX=OTHER):
                enqueue_all()
                call_command("run_outbox", "--drain")
            assert len(self.outbox.published) == 4

        def test_check(self):
            with self.settings(OUTBOX=OTHER):
                call_command("run_outbox", "--check")

    class PlainTests(Decorated, OutboxTestMixin, TestCase): ...

    class CommittingTests(Decorated, OutboxTestMixin, TransactionTestCase):
        def test_thread(self):
            def work():
                with override_settings(OUTBOX=OTHER):
                    enqueue_all()
                    with Relay() as relay:
                        relay.drain()
                connections.close_all()

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert len(self.outbox.published) == 4

    @override_settings(OUTBOX=OTHER)
    class DecoratedTests(Decorated, OutboxTestMixin, TestCase):
        async def test_async(self):
            await sync_to_async(enqueue)("order.created", {}, require_transaction=False)
            await sync_to_async(self.outbox.drain)()
            assert len(self.outbox.published) == 1

    @pytest.fixture
    def other(settings):
        settings.OUTBOX = OTHER

    @pytest.mark.usefixtures("outbox", "other")
    def test_fixture(outbox):
        deliver_all(outbox)

    if django.VERSION >= (6, 0):
        from django.tasks import task

        @task
        def place_order(id):
            enqueue("order.created", {"id": id})
            note.delay(id)

        class TaskTests(OutboxTestMixin, TestCase):
            def test_task(self):
                with self.settings(OUTBOX=OTHER):
                    result = place_order.enqueue(7)
                    self.outbox.drain()
                    result.refresh()
                    assert result.is_finished, result.errors
                    self.outbox.drain()
                assert {"order.created", note.name} <= {message.type for message in self.outbox.published}
"""

RUNNERS = {
    "pytest": ["pytest", "-q", "-p", "no:cacheprovider", "--ds", "project_settings", "test_project.py"],
    "unittest": ["django", "test", "--settings", "project_settings", "test_project"],
}


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_no_test_of_a_project_reaches_the_broker(tmp_path: Path, broker: Broker, runner: str):
    test_name = f"TEST_NAME = {str(tmp_path / 'test.sqlite3')!r}\n"
    (tmp_path / "project_settings.py").write_text(test_name + textwrap.dedent(SETTINGS))
    (tmp_path / "project_celery.py").write_text(textwrap.dedent(CELERY))
    (tmp_path / "test_project.py").write_text(textwrap.dedent(TESTS))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "BROKER_PORT": str(broker.port)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    command = [sys.executable, "-m", *RUNNERS[runner]]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert broker.connections == 0
