"""Limits of a role, a database or a server: none of them makes a relay repeat a batch."""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.brokers import Incoming
from django_outbox.handlers import handler
from django_outbox.inbox import receive
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.models import StreamPosition
from django_outbox.retention.purge import purge
from django_outbox.stores import get_store
from tests.conftest import ALIASES, LOCKING
from tests.relay.test_unsettled import HANDLERS
from tests.support.databases import another_alias
from tests.support.effects import scratch_handlers
from tests.support.messages import ago, put
from tests.support.publishers import SCRIPTED, Script
from tests.support.refused_rows import run_sql
from tests.support.relay_threads import running_relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

ON_POSTGRESQL = {
    "statement_timeout": "300ms",
    "lock_timeout": "300ms",
    "idle_in_transaction_session_timeout": "300ms",
    "transaction_timeout": "300ms",
    "idle_session_timeout": "1s",
}
ON_MARIADB = {
    "max_statement_time": "0.3",
    "idle_transaction_timeout": "1",
    "idle_readonly_transaction_timeout": "1",
    "idle_write_transaction_timeout": "1",
    "innodb_lock_wait_timeout": "1",
    "wait_timeout": "1",
}
ON_MYSQL = {"max_execution_time": "300", "innodb_lock_wait_timeout": "1", "wait_timeout": "1"}


def known_limits() -> dict[str, str]:
    """The limits that this version of PostgreSQL has."""
    known = {name for (name,) in get_store(connections["postgresql"]).fetch("SELECT name FROM pg_settings")}
    return {name: value for name, value in ON_POSTGRESQL.items() if name in known}


@contextmanager
def limited(using: str, *names: str) -> Iterator[None]:
    """Set limits for new sessions, such as those of a relay's threads; all that the server has if none is named."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        database = connection.ops.quote_name(connection.settings_dict["NAME"])
        limits = {name: value for name, value in known_limits().items() if name in (names or ON_POSTGRESQL)}
        run_sql(using, *(f"ALTER DATABASE {database} SET {name} = '{value}'" for name, value in limits.items()))
    else:
        limits = ON_MARIADB if connection.mysql_is_mariadb else ON_MYSQL  # type: ignore[attr-defined]
        # Connections of all threads are made of this one dictionary.
        init = f"SET {', '.join(f'SESSION {name} = {value}' for name, value in limits.items())}"
        connection.settings_dict["OPTIONS"]["init_command"] = init
    try:
        yield
    finally:
        if connection.vendor == "postgresql":
            run_sql(using, f"ALTER DATABASE {database} RESET ALL")
        else:
            del connection.settings_dict["OPTIONS"]["init_command"]


@contextmanager
def slow(using: str, event: str) -> Iterator[None]:
    """Let every UPDATE or DELETE of messages or of positions of streams take half a second."""
    quote = connections[using].ops.quote_name
    tables = {
        f"outbox_wait_{n}": quote(model._meta.db_table) for n, model in enumerate((OutboxMessage, StreamPosition))
    }
    if using == "postgresql":
        create = [
            "CREATE FUNCTION outbox_wait() RETURNS trigger AS "
            "$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$ LANGUAGE plpgsql",
            *(
                f"CREATE TRIGGER {name} AFTER {event} ON {on} EXECUTE FUNCTION outbox_wait()"
                for name, on in tables.items()
            ),
        ]
        drop = ["DROP FUNCTION outbox_wait CASCADE"]
    else:
        create = [
            f"CREATE TRIGGER {name} AFTER {event} ON {on} FOR EACH ROW DO SLEEP(0.5)" for name, on in tables.items()
        ]
        drop = [f"DROP TRIGGER {name}" for name in tables]
    run_sql(using, *create)
    try:
        yield
    finally:
        run_sql(using, *drop)


SOURCES = [
    (using, source)
    for using in LOCKING
    for source in ("table", "snapshot", "handlers", "rate limit")
    # They are the same code on each database.
    if source in ("table", "handlers") or using == "postgresql"
]


@pytest.mark.parametrize(("locking", "source"), SOURCES)
def test_limits_that_are_shorter_than_a_batch_repeat_nothing(
    locking: str, source: str, scripted: Script, caplog: pytest.LogCaptureFixture
):
    entries: dict[str, dict[str, Any]] = {
        "table": SCRIPTED,
        "snapshot": {**SCRIPTED, "SOURCE": "snapshot"},
        "handlers": HANDLERS,
        "rate limit": {**SCRIPTED, "RATE_LIMIT": 100},
    }
    pause = 0.5 if locking == "postgresql" else 1.5
    handled: list[int] = []

    def answer(message: Message) -> Outcome:
        if message is scripted.batches[-1][0]:
            time.sleep(pause)
        return ACCEPTED

    scripted.answer = answer
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entries[source]}}), scratch_handlers():

        @handler("t")
        def work(payload: int, message: Message) -> None:
            handled.append(message.id)
            time.sleep(pause)

        ids = put(2, locking)
        with slow(locking, "UPDATE"), limited(locking), running_relay(using=locking) as relay:
            eventually(lambda: relay.tally.processed == 2, seconds=20)
            if source == "table":
                # Longer than idle sessions last.
                time.sleep(1.5)
            later = put(1, locking, key="k")
            eventually(lambda: relay.tally.processed == 3, seconds=20)
    published = handled if source == "handlers" else scripted.published()
    assert Counter(published) == dict.fromkeys([*ids, *later], 1)
    assert "Database" not in caplog.text
    assert "unavailable" not in caplog.text


@pytest.mark.parametrize("source", ["table", "snapshot"])
def test_a_limit_of_transactions_alone_repeats_nothing(source: str, scripted: Script):
    if "transaction_timeout" not in known_limits():
        pytest.skip("transaction_timeout needs PostgreSQL 17 or newer: POSTGRES_URL=postgres://...")

    def answer(message: Message) -> Outcome:
        time.sleep(0.5)
        return ACCEPTED

    scripted.answer = answer
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": source}}}):
        ids = put(2, "postgresql")
        with limited("postgresql", "transaction_timeout"), running_relay(using="postgresql") as relay:
            eventually(lambda: relay.tally.processed == 2, seconds=20)
    assert scripted.published() == ids


def test_a_lock_that_delays_a_settlement_repeats_nothing(scripted: Script):
    """Such as the lock of CREATE INDEX."""
    using, is_locked = "postgresql", threading.Event()

    def answer(message: Message) -> Outcome:
        if not is_locked.is_set():
            with other.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {OutboxMessage._meta.db_table} IN SHARE MODE")
            is_locked.set()
        return ACCEPTED

    scripted.answer = answer
    with closing(connections[using].copy()) as other:
        other.inc_thread_sharing()
        other.set_autocommit(False)
        ids = put(2, using)
        with limited(using), running_relay(using=using) as relay:
            assert is_locked.wait(20)
            time.sleep(0.6)
            other.rollback()
            eventually(lambda: relay.tally.processed == 2, seconds=20)
    assert scripted.published() == ids


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("using", LOCKING)
def test_the_limits_of_a_session_are_restored(using: str, transactional: bool):
    """Those of the project's `init_command` are not the server's defaults."""
    with limited(using), another_alias(using) as limited_one:
        connection = connections[limited_one]
        if connection.vendor == "postgresql":
            names = [*known_limits()]
        else:
            names = [*(ON_MARIADB if connection.mysql_is_mariadb else ON_MYSQL)]  # type: ignore[attr-defined]

        def read() -> dict[str, Any]:
            show = "current_setting('{}')" if connection.vendor == "postgresql" else "@@{}"
            ((*values,),) = get_store(connection).fetch(f"SELECT {', '.join(show.format(name) for name in names)}")
            return dict(zip(names, values, strict=True))

        before = read()
        for _ in range(2):
            with get_store(connection).transaction(300, transactional=transactional):
                assert read() != before
            get_store(connection).restore_session()
            assert read() == before


@pytest.mark.parametrize("using", LOCKING)
def test_processed_messages_are_deleted_however_long_that_takes(using: str):
    put(1, using)
    OutboxMessage.objects.using(using).update(available_at=None, processed_at=ago(days=8))
    with slow(using, "DELETE"), limited(using), another_alias(using) as limited_one:
        assert purge(using=limited_one) == 1


@pytest.mark.parametrize("using", LOCKING)
def test_incoming_messages_are_stored_however_long_that_takes(using: str):
    batch = [Incoming(tag=n, body=b"1", headers={}, type="t", message_id=str(uuid.uuid4())) for n in range(2)]
    with slow(using, "INSERT"), limited(using), another_alias(using) as limited_one:
        assert len(receive(batch, "billing", publisher="default", using=limited_one).stored) == 2
