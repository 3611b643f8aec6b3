"""Follow one message through the package, and print the files that it enters: `python -m tests.walks`.

A file counts once, when one of its functions is called. The work of other threads is left out, such as a relay's
reports: a reader who follows a message does not open it. The thread of the connection to RabbitMQ counts, because it
sends the message. AMQP_URL names the broker.
"""

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import django
import pika
from django.conf import settings
from django.core.management import call_command
from django.db import transaction

import django_outbox

PACKAGE = Path(django_outbox.__file__).parent
MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
HANDLERS = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
AMQP_URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
RABBITMQ = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    # No queue is bound, so the message is confirmed and dropped.
    "OPTIONS": {"url": AMQP_URL, "exchange": "amq.fanout", "mandatory": False},
}

CONNECTION = "outbox-rabbitmq"
"""The beginning of the name of a thread that counts besides the main thread."""


class Walk(NamedTuple):
    """One walk: its name, the files in the order in which they are entered, and its calls into another file."""

    name: str
    files: list[str]
    calls: int

    def __str__(self) -> str:
        return f"{self.name}: {len(self.files)} files, {self.calls} calls between files\n  {', '.join(self.files)}"


def walks() -> Iterator[Walk]:
    """Take each walk."""
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django_outbox", "django_outbox.inbox"],
        OUTBOX={"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS, "rabbitmq": RABBITMQ}},
        USE_TZ=True,
    )
    django.setup()
    # The package's modules need the settings.
    from django_outbox import enqueue  # noqa: PLC0415
    from django_outbox.handlers import handler  # noqa: PLC0415
    from django_outbox.relay import Relay  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    handler("walked")(lambda payload, message: None)

    def put(publisher: str) -> None:
        with transaction.atomic():
            enqueue("walked", 1, key="k", publisher=publisher)

    def deliver(name: str, publisher: str) -> Walk:
        with Relay(publishers=[publisher]) as relay:
            walk = follow(name, relay.deliver_once, lambda: put(publisher))
            assert relay.tally.processed == relay.tally.claimed > 1, relay.tally
        return walk

    yield follow("enqueue", lambda: put("default"))
    yield deliver("claim, publish and settle", "default")
    yield deliver("claim, publish to RabbitMQ and settle", "rabbitmq")
    yield deliver("claim, call a handler and settle", "handlers")
    with closing(pika.BlockingConnection(pika.URLParameters(AMQP_URL))) as connection:
        yield receive("receive from RabbitMQ, store and settle", connection.channel())
    yield follow("outbox_status", lambda: call_command("outbox_status", stdout=StringIO()))


def receive(name: str, channel: Any) -> Walk:
    from django_outbox.brokers.rabbitmq import RabbitMQConsumer  # noqa: PLC0415
    from django_outbox.inbox.reading import (  # noqa: PLC0415
        LIMITS,
        InboxState,
        Reader,
    )

    queue = channel.queue_declare(f"outbox-walk-{uuid.uuid4()}", arguments={"x-expires": 60_000}).method.queue
    consumer = RabbitMQConsumer("walk", url=AMQP_URL, queue=queue)
    state = InboxState("default", ["walk"], LIMITS)
    reader = Reader(consumer, state)

    def put() -> None:
        properties = pika.BasicProperties(message_id=str(uuid.uuid4()), type="walked", headers={"outbox-key": "k"})
        channel.basic_publish("", queue, b'{"id": 7}', properties)

    def read_one() -> None:
        before = state.tally.stored
        while state.tally.stored == before:
            reader._read_batch()

    with closing(consumer):
        return follow(name, read_one, put)


def follow(name: str, work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Walk:
    """Call a function twice, and return the walk of the second call: the first one imports, connects and caches."""
    files: list[str] = []
    calls = 0
    is_second = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        file = Path(frame.f_code.co_filename)
        if not is_second or event != "call" or not file.is_relative_to(PACKAGE):
            return
        thread = threading.current_thread()
        if thread is threading.main_thread() or thread.name.startswith(CONNECTION):
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            calls += caller != frame.f_code.co_filename
            path = str(file.relative_to(PACKAGE))
            if path not in files:
                files.append(path)

    # For threads that the first call starts.
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        prepare()
        work()
        prepare()
        is_second = True
        work()
    finally:
        is_second = False
        sys.setprofile(None)
        threading.setprofile(None)
    return Walk(name, files, calls)


if __name__ == "__main__":
    for each in walks():
        sys.stdout.write(f"{each}\n")
