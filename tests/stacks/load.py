"""Callers and a relay under load on PostgreSQL, with all three sources, and the promises that hold afterwards."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.management import call_command
from django.db import DatabaseError, connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import StreamPosition
from tests.streams.conftest import publish
from tests.streams.test_servers import Server, servers
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK
from tests.support.waiting import eventually

SOURCES = ("table", "snapshot", "log")
OUTBOX: dict[str, Any] = {
    "PUBLISHERS": {"default": SCRIPTED, **{source: {**SCRIPTED, "SOURCE": source} for source in SOURCES}}
}
RELAY: dict[str, Any] = {"publishers": SOURCES, "workers": 2, "batch_size": 20, "limits": QUICK}
"""The arguments of a relay."""

BATCHES = len(SOURCES) * RELAY["workers"] * RELAY["batch_size"]
"""The number of messages that are in hand at once, and may be published again after each interruption."""


@contextmanager
def own_servers(number: int, blocker: Any) -> Iterator[list[Server]]:
    """Yield servers; the first one runs and has the tables."""
    with servers(*[None] * number) as made, override_settings(OUTBOX=OUTBOX), blocker.unblock():
        made[0].start()
        call_command("migrate", database=made[0].alias, verbosity=0)
        publish(made[0].alias)
        yield made


@contextmanager
def lagging_standby(blocker: Any) -> Iterator[list[Server]]:
    """Yield a server and its standby, which applies every transaction an hour late."""
    with own_servers(2, blocker) as (primary, standby):
        standby.run("pg_basebackup", "-D", standby.home, "-R", "-X", "stream", "-c", "fast", *primary.address)
        standby.command = [*standby.command, "-c", "recovery_min_apply_delay=1h"]
        standby.start()
        yield [primary, standby]


@contextmanager
def another_alias(alias: str, **options: Any) -> Iterator[str]:
    """Connect with other OPTIONS, in all threads."""
    name = f"{alias}_{'_'.join(options)}"
    connections.settings[name] = {**connections.settings[alias], "OPTIONS": options}
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name], connections.settings[name]


def empty(alias: str) -> None:
    for model in (OutboxMessage, StreamPosition):
        model.objects.using(alias).all().delete()


def write(using: str, publisher: str, key: str = "") -> int:
    with transaction.atomic(using=using):
        return enqueue("t", 1, key=key, publisher=publisher, using=using).pk


@contextmanager
def callers(using: str, count: int = 2) -> Iterator[list[Exception]]:
    """Let threads enqueue until the end of the block, each with its own keys, and yield the errors they meet."""
    left, errors = threading.Event(), list[Exception]()

    def work(name: str) -> None:
        for source in itertools.cycle(SOURCES):
            if left.wait(0.01):
                break
            try:
                write(using, source, f"{name} {source}")
            except DatabaseError as error:
                errors.append(error)
            # As at the end of a request, where a pool gets the connection back.
            if errors or "pool" in connections.settings[using]["OPTIONS"]:
                with suppress(DatabaseError):
                    connections[using].close()

    threads = [threading.Thread(target=work, args=[str(number)]) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        left.set()
        for thread in threads:
            thread.join(60)


def flow(script: Script, number: int = 100) -> None:
    """Wait until that many more messages are published."""
    wanted = len(script.published()) + number
    eventually(lambda: len(script.published()) >= wanted, "messages are published")


def assert_delivered(script: Script, alias: str, *, repeats: int) -> None:
    """Wait until all messages are delivered; then check the order of each key and the number of repetitions."""
    table = OutboxMessage.objects.using(alias)
    stored = set(table.values_list("pk", flat=True))
    eventually(lambda: stored <= set(script.published()) and not table.pending().exists(), "all is delivered")
    sent = dict.fromkeys((message.key, message.id) for batch in script.batches for message in batch)
    for key in {key for key, _ in sent}:
        ids = [id for each, id in sent if each == key]
        assert ids == sorted(ids), key
    assert {id for _, id in sent} == stored
    assert len(script.published()) - len(stored) <= repeats
    assert not table.failed().exists()
