"""Faults of the database: it goes away, crashes, and other sessions are in the way."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import MySQLdb
import psycopg

from tests.faults.kinds import everyone, fault
from tests.faults.plan import CLAIM_TIMEOUT
from tests.faults.servers import TABLE
from tests.faults.stage import Stage
from tests.support.children import SuiteError


@fault("database")
def backends_ended(stage: Stage, rand: random.Random) -> int:
    """`pg_terminate_backend` or `KILL` for some of the relays' connections, or for all."""
    limit = rand.choice((1, 2, None))
    stage.database.end_backends("relay", limit)
    return limit or everyone(stage)


@fault("database")
def database_restarted(stage: Stage, rand: random.Random) -> int:
    """The server is stopped as an administrator does, and restarted."""
    stage.database.restart()
    return everyone(stage)


@fault("database")
def database_killed(stage: Stage, rand: random.Random) -> int:
    """The server is killed, and recovers."""
    stage.database.crash()
    return everyone(stage)


@fault("database")
def limits_set(stage: Stage, rand: random.Random) -> int:
    """An administrator sets time limits that no claim can keep to, and ends all connections."""
    stage.database.limit("relay")
    stage.database.end_backends("relay")
    stage.pause(rand.uniform(2, 6))
    stage.database.limit("relay", reset=True)
    stage.database.end_backends("relay")
    return everyone(stage)


@fault("database")
def rows_locked(stage: Stage, rand: random.Random) -> int:
    """A transaction locks pending rows for some seconds, heads of keys among them."""
    order = rand.choice(("id", "id DESC"))
    with session(stage) as cursor:
        cursor.execute(
            f"SELECT id FROM {TABLE} WHERE available_at IS NOT NULL ORDER BY {order} LIMIT 100 FOR UPDATE SKIP LOCKED"
        )
        cursor.fetchall()
        stage.pause(rand.uniform(1, CLAIM_TIMEOUT + 1))
    return everyone(stage)


@fault("database")
def table_locked(stage: Stage, rand: random.Random) -> int:
    """The whole table is locked for a moment, as by a migration."""
    postgresql = stage.database.vendor == "postgresql"
    with session(stage) as cursor:
        cursor.execute(f"LOCK TABLE {TABLE}" if postgresql else f"LOCK TABLES {TABLE} WRITE")
        stage.pause(rand.uniform(0.5, CLAIM_TIMEOUT + 1))
        if not postgresql:
            cursor.execute("UNLOCK TABLES")
    return everyone(stage)


@fault("database")
def snapshot_held(stage: Stage, rand: random.Random) -> int:
    """A transaction keeps an old snapshot open, as a long report does."""
    with session(stage) as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(f"SELECT count(*) FROM {TABLE} WHERE failed_at IS NOT NULL")
        cursor.fetchall()
        stage.pause(rand.uniform(2, 6))
    return 0


@fault("database")
def deadlocks(stage: Stage, rand: random.Random) -> int:
    """Two sessions update pending rows in different orders, under SERIALIZABLE, and block everyone."""
    threads = [threading.Thread(target=meddle, args=(stage, random.Random(rand.random()), 3.0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return everyone(stage)


def meddle(stage: Stage, rand: random.Random, seconds: float) -> None:
    """Touch pending rows in an order by chance, without changing them, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stage.over.is_set():
        with session(stage) as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            cursor.execute(f"SELECT id FROM {TABLE} WHERE available_at IS NOT NULL ORDER BY id LIMIT 40")
            ids = [id for (id,) in cursor.fetchall()]
            rand.shuffle(ids)
            for id in ids[:15]:
                cursor.execute(f"UPDATE {TABLE} SET topic = topic WHERE id = %s", [id])
                time.sleep(0.005)
            cursor.connection.commit()
        time.sleep(0.02)


@fault("database")
def purge(stage: Stage, rand: random.Random) -> int:
    """`outbox_purge` deletes messages that were processed more than a few seconds ago."""
    stage.refusals.look(stage.database)
    # The database may be away.
    with suppress(SuiteError):
        stage.manage("outbox_purge", "--older-than", str(rand.uniform(3, 10) / 86_400))
    return 0


@contextmanager
def session(stage: Stage) -> Iterator[Any]:
    """A cursor in a transaction, which is rolled back in the end; an error of the database ends the context early."""
    with (
        closing(stage.database.connect(autocommit=False)) as connection,
        closing(connection.cursor()) as cursor,
        suppress(psycopg.Error, MySQLdb.Error),
    ):
        yield cursor
        connection.rollback()
