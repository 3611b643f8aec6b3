"""The database connections of a relay: servers that end idle ones, and connection pools."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.db.transactions import is_silent
from django_outbox.relay import Limits, Relay
from tests.conftest import ALIASES
from tests.support.databases import kill
from tests.support.publishers import SCRIPTED
from tests.support.relay_threads import running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "other": SCRIPTED}, "NOTIFY": True}


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set OPTIONS of a database for the connections that are made from now on."""
    changed = []

    def set_options(alias: str, **values: Any) -> None:
        for name, value in values.items():
            monkeypatch.setitem(connections.settings[alias]["OPTIONS"], name, value)
        changed.append(alias)

    yield set_options
    for alias in changed:
        connections[alias].close()


@pytest.fixture
def connected() -> Iterator[list[str]]:
    """The aliases of the connections that are made meanwhile."""
    found: list[str] = []

    def note(*, connection: Any, **_: Any) -> None:
        found.append(connection.alias)

    connection_created.connect(note)
    yield found
    connection_created.disconnect(note)


@pytest.mark.parametrize(
    ("alias", "idle_limit"),
    [
        ("postgresql", {"options": "-c idle_session_timeout=1000"}),
        ("mariadb", {"init_command": "SET SESSION wait_timeout = 1"}),
    ],
)
def test_an_idle_relay_whose_connection_the_server_ends_goes_on_without_a_word(
    options: Callable[..., None],
    connected: list[str],
    caplog: pytest.LogCaptureFixture,
    alias: str,
    idle_limit: dict[str, str],
):
    options(alias, **idle_limit)
    with (
        caplog.at_level(logging.WARNING),
        running_relay(
            # A connection that is idle for less than half a second is not looked at before it is used.
            using=alias,
            poll_interval=2,
            limits=Limits(first_idle_wait=2.0),
        ) as relay,
    ):
        # Two publishers and a listener; then one that was ended, at least.
        eventually(lambda: len(connected) > 6)
        with transaction.atomic(using=alias):
            enqueue("t", 1, using=alias)
        eventually(lambda: relay.tally.processed == 1)
    assert caplog.text == ""


def test_a_worker_in_whose_place_others_poll_goes_on_without_a_word(
    options: Callable[..., None], caplog: pytest.LogCaptureFixture
):
    options("postgresql", options="-c idle_session_timeout=1000")
    limits = Limits(first_idle_wait=0.3)
    with (
        caplog.at_level(logging.WARNING),
        running_relay(using="postgresql", poll_interval=0.3, limits=limits) as relay,
    ):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            # As another worker that finds nothing.
            relay._state.wake_ups.wait("default", frozenset(["default"]), 0)
            time.sleep(0.1)
        with transaction.atomic(using="postgresql"):
            enqueue("t", 1, using="postgresql")
        eventually(lambda: relay.tally.processed == 1)
    assert caplog.text == ""


@pytest.mark.parametrize("alias", ["postgresql", "mariadb"])
def test_a_connection_is_silent_until_the_server_ends_it(alias: str):
    connection = connections[alias]
    connection.ensure_connection()
    assert is_silent(connection)
    kill(alias)
    eventually(lambda: not is_silent(connection))
    connection.close()


def test_a_connection_without_a_network_is_not_silent():
    connections["default"].ensure_connection()
    assert not is_silent(connections["default"])


@pytest.fixture
def pool(options: Callable[..., None]) -> Iterator[Any]:
    """Let PostgreSQL's connections come from a pool of one."""
    connection = connections["postgresql"]
    connection.close()
    options("postgresql", pool={"min_size": 1, "max_size": 1, "timeout": 5})
    yield connection.pool  # type: ignore[attr-defined]
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]


class TestPool:
    def put(self, count: int) -> None:
        for publisher in ("default", "other"):
            messages = [OutboxMessage(type="t", payload=n, publisher=publisher) for n in range(count)]
            with transaction.atomic(using="postgresql"):
                enqueue_many(messages, using="postgresql")

    def test_a_relay_takes_no_connection_from_a_pool(self, pool: Any):
        with running_relay(using="postgresql", workers=2) as relay:
            for round in (1, 2):
                # The only connection of the pool is in use here.
                self.put(10)
                eventually(lambda: relay.tally.processed == 20 * round)  # noqa: B023 - it is over before the next round

    def test_a_relay_leaves_no_connection_behind(self, pool: Any):
        before = self.sessions()
        self.put(10)
        with Relay(using="postgresql", workers=2, max_messages=20) as relay:
            relay.run()
        eventually(lambda: self.sessions() <= before)

    def sessions(self) -> int:
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND backend_type = 'client backend'"
            )
            return int(cursor.fetchone()[0])
