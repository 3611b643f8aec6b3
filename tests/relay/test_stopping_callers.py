"""Interrupts of the thread that has called a relay: Ctrl-C in a script, and the soft time limit of Celery."""

import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from celery import Celery
from django.conf import settings
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue_many
from tests.conftest import ALIASES
from tests.support.scripts import StartProcess, ends_with
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.script_fixtures"]
pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

SETUP = """
import os, sys, time
from tests import settings
settings.DATABASES["postgresql"]["NAME"] = sys.argv[1]
settings.OUTBOX["BATCH_SIZE"] = 2

import django
django.setup()
from django_outbox.brokers.memory import MemoryPublisher
publish = MemoryPublisher.publish

def slowly(self, messages):
    os.write(1, f"publishing {' '.join(str(message.id) for message in messages)}\\n".encode())
    time.sleep(float(sys.argv[2]))
    return publish(self, messages)

MemoryPublisher.publish = slowly
"""

SCRIPT = (
    SETUP
    + """
from django_outbox.relay import Relay
method = sys.argv[3]
try:
    with Relay(using="postgresql") as relay:
        getattr(relay, method)()
except KeyboardInterrupt:
    print("interrupted after", relay.tally.processed)
"""
)

CELERY = (
    SETUP
    + """
from celery import Celery
app = Celery("test", broker=settings.AMQP_URL)
app.conf.task_default_queue = sys.argv[3]
app.autodiscover_tasks(["django_outbox"], force=True)
# Nodes of one name cannot share a broker, and other runs of the tests may have one.
name = f"--hostname={sys.argv[3]}@%h"
app.worker_main(["worker", name, "--loglevel=INFO", "--concurrency=1", "--without-mingle", "--without-gossip"])
"""
)


@pytest.fixture
def ids() -> list[int]:
    """Four messages that are due."""
    with transaction.atomic(using="postgresql"):
        enqueue_many([OutboxMessage(type="t", payload=n) for n in range(4)], using="postgresql")
    return list(OutboxMessage.objects.using("postgresql").order_by("id").values_list("id", flat=True))


def database_name() -> str:
    return str(connections["postgresql"].settings_dict["NAME"])


def processed() -> int:
    return OutboxMessage.objects.using("postgresql").processed().count()


class TestCtrlC:
    @pytest.mark.parametrize("method", ["run", "deliver_once"])
    def test_the_batch_in_hand_is_finished_and_the_exception_goes_on(
        self, start: StartProcess, ids: list[int], method: str
    ):
        process = start(SCRIPT, database_name(), "1.5", method)
        assert process.stdout is not None
        publishing = process.stdout.readline()
        assert publishing == f"publishing {ids[0]} {ids[1]}\n".encode()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (output, errors) == (b"interrupted after 2\n", b"")
        assert process.returncode == 0
        assert processed() == 2

    def test_a_second_one_stops_at_once(self, start: StartProcess, ids: list[int]):
        process = start(SCRIPT, database_name(), "120", "run")
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"publishing")
        process.send_signal(signal.SIGINT)
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (output, errors) == (b"interrupted after 0\n", b""), "no thread says anything"
        assert process.returncode == 0
        assert processed() == 0


class TestCelery:
    @pytest.fixture
    def queue(self) -> Iterator[str]:
        queue = f"outbox-test-{uuid.uuid4().hex[:8]}"
        yield queue
        connection = pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))
        channel = connection.channel()
        channel.queue_delete(queue)
        channel.exchange_delete(queue)
        connection.close()

    @pytest.mark.slow
    def test_the_soft_time_limit_ends_the_task_after_the_batch_in_hand(
        self, start: StartProcess, ids: list[int], queue: str, tmp_path: Any
    ):
        log = tmp_path / "log"
        with log.open("wb") as output:
            worker = start(CELERY, database_name(), "9", queue, stdout=output, stderr=output)
        with Celery(broker=settings.AMQP_URL, set_as_current=False) as app:
            app.conf.task_default_queue = queue
            app.send_task("django_outbox.tasks.drain_outbox", ["postgresql"], soft_time_limit=5)
        try:
            eventually(lambda: "raised unexpected: SoftTimeLimitExceeded" in log.read_text(), seconds=60)
        except AssertionError:
            pytest.fail(f"The worker logged:\n{log.read_text()}")
        assert processed() == 2, "the batch in hand is settled before the task ends"
        # Whoever went on would publish the next batch now.
        time.sleep(1)
        worker.send_signal(signal.SIGTERM)
        assert ends_with(worker) == 0
        published = [line for line in log.read_text().splitlines() if line.startswith("publishing")]
        assert published == [f"publishing {ids[0]} {ids[1]}"]
        assert processed() == 2
