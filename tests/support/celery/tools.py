"""Workers that tests start, and the queues and keys that they leave behind."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import redis
from celery import Celery
from django.conf import settings
from django.db import connections

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent.parent

BROKERS: dict[str, str] = {"rabbitmq": settings.AMQP_URL, "redis": settings.REDIS_URL}
"""The URLs of the brokers that the tests run on."""

PATH = "tests.support.celery.app:app"
"""The app of the test, as the publisher's option names it."""

MakeApp = Callable[..., Celery]
"""Makes the app of the test, given the broker's URL and settings."""

PUBLISHERS: dict[str, Any] = {
    "default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"},
    "celery": {
        "BACKEND": "django_outbox.brokers.celery.CeleryPublisher",
        "OPTIONS": {"app": PATH},
    },
}


def new_prefix() -> str:
    return f"outbox-test-{uuid.uuid4().hex[:8]}"


def close(app: Celery) -> None:
    """Close an app and the connections of its result backend."""
    backend: Any = app.backend
    backend.result_consumer.stop()
    # The client of Celery's backend does not own its pool, and leaves it open.
    backend.client.connection_pool.disconnect()
    app.close()


@contextmanager
def cleaned_up(prefix: str) -> Iterator[None]:
    """Delete the queues, exchanges and keys whose names begin with a prefix, in the end."""
    try:
        yield
    finally:
        with pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL)) as connection:
            for suffix in ("", "-topic", "-missing", "-gone"):
                channel = connection.channel()
                channel.queue_delete(prefix + suffix)
                channel.exchange_delete(prefix + suffix)
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            for key in client.scan_iter(f"*{prefix}*"):
                client.delete(key)


@contextmanager
def worker(app: Celery, using: str, broker: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a prefork worker with two processes on a database of the test run, which is its default."""
    prefix = app.conf.task_default_queue
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
    arguments = ["worker", "-n", f"{prefix}@%h", "-P", "prefork", "-c", "2", *quiet]
    with _celery(arguments, app, using, broker, log) as process:
        eventually(lambda: " ready." in log.read_text() or process.poll() is not None, log.read_text(), seconds=60)
        assert process.poll() is None, log.read_text()
        yield process


@contextmanager
def beat(app: Celery, using: str, broker: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run beat on a database of the test run; it calls the task `tests.note` every second."""
    schedule = log.with_name("schedule")
    arguments = ["beat", "--loglevel=INFO", "--pidfile=", f"--schedule={schedule}", "--max-interval=1"]
    with _celery(arguments, app, using, broker, log) as process:
        yield process


@contextmanager
def _celery(
    arguments: list[str], app: Celery, using: str, broker: str, log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.support.celery.settings",
        "OUTBOX_CELERY_DATABASE": json.dumps(_database(using)),
        "OUTBOX_CELERY_BROKER": broker,
        "OUTBOX_CELERY_PREFIX": app.conf.task_default_queue,
    }
    command = [sys.executable, "-m", "celery", "-A", "tests.support.celery.worker", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _database(using: str) -> dict[str, Any]:
    found = connections[using].settings_dict
    return {name: found[name] for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
