"""Messages with SOURCE "log" are delivered as PostgreSQL's log brings them."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome, retry_later
from django_outbox.models import Heartbeat, Pause, StreamPosition
from django_outbox.monitoring import verdicts
from django_outbox.monitoring.prometheus import OutboxCollector
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from django_outbox.relay.batch import Unsettled
from django_outbox.relay.sources.log import Feed
from django_outbox.stores.replication import LogReader, LogUnavailable
from django_outbox.stores.stream import StoredPosition, Stream
from django_outbox.stores.wal import SET_UP, Inspection
from tests.faults.servers import PostgreSQL
from tests.streams.conftest import LOG, execute, publish
from tests.streams.sources import (
    assert_delivered_once_in_order,
    deliver,
    follows,
    insert,
    new_log_source,
    report_relays,
)
from tests.support.databases import open_transaction, statements
from tests.support.effects import HANDLERS, scratch_handlers
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, running_relay
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.monitoring_fixtures"]
pytestmark = pytest.mark.usefixtures("scripted", "log")

OUTBOX: dict[str, Any] = {
    "PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "log"}, "other": {**SCRIPTED, "SOURCE": "log"}}
}


class Worker:
    """A worker that delivers when the test says so."""

    def __init__(self, **limits: Any) -> None:
        self.woken = threading.Event()
        self.source, self.log = new_log_source(LOG, self.wake, **limits)

    def wake(self, names: Iterable[str]) -> None:
        self.woken.set()

    def deliver(self, limit: int = 100) -> int:
        return deliver(self.source, limit).tally.processed

    def lists(self) -> bool:
        """Deliver, and return whether the database was searched for streamed messages."""
        with CaptureQueriesContext(connections[LOG]) as queries:
            self.deliver()
        return any("xid >=" in query["sql"] for query in queries.captured_queries)

    def follow(self) -> None:
        """Deliver until messages come from the log only."""
        eventually(lambda: self.deliver() == 0 and follows(self.log))
        self.woken.clear()

    def opens(self) -> bool:
        """Return whether it has begun to open the log."""
        return self.log._feed is not None

    def receive(self) -> None:
        """Wait until the log has brought something."""
        assert self.woken.wait(60)
        self.woken.clear()

    def deliver_until(self, delivers: Callable[[], bool]) -> None:
        """Deliver again and again until something is true."""
        eventually(lambda: [self.deliver(), delivers()][1])


@pytest.fixture
def new_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def make(**limits: Any) -> Worker:
        workers.append(Worker(**limits))
        return workers[-1]

    yield make
    for worker in workers:
        worker.source.close()


@pytest.fixture
def worker(new_worker: Callable[..., Worker]) -> Worker:
    """A worker whose claims are not ended by a slow machine."""
    return new_worker(follow_time=60.0)


def test_messages_come_from_the_log_without_a_search(worker: Worker, scripted: Script):
    put(1, LOG)
    worker.follow()
    ids = put(3, LOG, keys=2)
    worker.receive()
    with CaptureQueriesContext(connections[LOG]) as queries:
        assert worker.deliver() == 3
    assert scripted.published()[1:] == ids
    assert statements(queries) == ["SET", "UPDATE"]
    assert worker.deliver() == 0


class Arrivals:
    """Lets something happen while a relay publishes its next messages, one after the other."""

    def __init__(self, worker: Worker, scripted: Script) -> None:
        self.worker = worker
        self.outcomes: list[Outcome] = []
        self.events: list[Callable[[], object]] = []
        scripted.answer = self.answer

    def answer(self, message: Message) -> Outcome:
        if self.events:
            self.events.pop(0)()
        return self.outcomes.pop(0) if self.outcomes else ACCEPTED

    def put(self, *, deleted: bool = False) -> int:
        """Commit a message from another session, and wait until the log has brought it."""
        before = self.feed.arrived
        with psycopg.connect(connections[LOG].connection.info.dsn) as session:
            id = insert(session.cursor())
            session.commit()
            if deleted:
                session.execute("DELETE FROM django_outbox_outboxmessage WHERE id = %s", [id])
        eventually(lambda: self.feed.arrived > before)
        return id

    def lose_session(self) -> None:
        driver = connections[LOG].connection
        with psycopg.connect(driver.info.dsn, autocommit=True) as session:
            session.execute("SELECT pg_terminate_backend(%s, 5000)", [driver.info.backend_pid])

    @property
    def feed(self) -> Feed:
        assert self.worker.log._feed is not None
        return self.worker.log._feed


@pytest.fixture
def arrivals(worker: Worker, scripted: Script) -> Arrivals:
    worker.follow()
    return Arrivals(worker, scripted)


def test_messages_that_arrive_while_others_are_published_follow_in_the_same_claim(
    arrivals: Arrivals, worker: Worker, scripted: Script
):
    arrivals.events = [arrivals.put, arrivals.put]
    arrivals.put()
    with CaptureQueriesContext(connections[LOG]) as queries:
        assert worker.deliver() == 3
    assert [len(batch) for batch in scripted.batches] == [1, 1, 1]
    assert statements(queries)[-4:] == ["SET", "EXECUTE", "EXECUTE", "UPDATE"]
    assert worker.deliver() == 0


def test_a_claim_does_not_follow_the_log_for_longer_than_its_time(new_worker: Callable[..., Worker], scripted: Script):
    worker = new_worker(follow_time=0.0)
    worker.follow()
    arrivals = Arrivals(worker, scripted)
    arrivals.events = [arrivals.put]
    arrivals.put()
    assert [worker.deliver(), worker.deliver(), worker.deliver()] == [1, 1, 0]


def test_a_claim_that_follows_the_log_is_limited_in_messages(arrivals: Arrivals, worker: Worker):
    arrivals.events = [arrivals.put] * 2
    arrivals.put()
    assert [worker.deliver(2), worker.deliver(), worker.deliver()] == [2, 1, 0]


def test_a_claim_that_follows_the_log_is_limited_in_bytes(arrivals: Arrivals, worker: Worker):
    arrivals.events = [arrivals.put] * 3
    arrivals.put()
    feed = arrivals.feed
    eventually(lambda: feed._waiting)
    limited = dataclasses.replace(worker.source.table.settings, batch_bytes=2 * feed._waiting[-1].size)
    worker.source.table.settings = limited
    assert [worker.deliver(), worker.deliver(), worker.deliver()] == [2, 2, 0]


def test_a_message_that_follows_does_not_overtake_one_of_its_key_that_waits(
    arrivals: Arrivals, worker: Worker, scripted: Script
):
    """The message that the other one waits for is delivered from the table in the meantime."""
    arrivals.outcomes = [retry_later("full", retry_after=3600)]
    (first,) = put(1, LOG, keys=1)
    worker.receive()
    worker.deliver()
    (waiting,) = put(1, LOG, keys=1)
    other = arrivals.put()
    later: list[int] = []

    def commit() -> None:
        OutboxMessage.objects.using(LOG).filter(pk=first).delete()
        later.extend(put(1, LOG, keys=1))
        connections[LOG].close()

    def end_wait() -> None:
        before = arrivals.feed.arrived
        committing = threading.Thread(target=commit)
        committing.start()
        committing.join()
        eventually(lambda: arrivals.feed.arrived > before)

    arrivals.events = [end_wait]
    assert worker.deliver() == 1
    worker.deliver_until(lambda: scripted.published() == [first, other, waiting, *later])


def test_a_claim_that_is_not_settled_leaves_its_messages_in_the_stream(
    arrivals: Arrivals, worker: Worker, scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is remembered of what followed it, as of a message that was deleted."""
    move = Stream.move

    def refuse_once(self: Stream, position: StoredPosition) -> StoredPosition:
        monkeypatch.setattr(Stream, "move", move)
        raise OperationalError("canceling statement due to statement timeout")

    arrivals.events = [partial(arrivals.put, deleted=True)]
    monkeypatch.setattr(Stream, "move", refuse_once)
    first = arrivals.put()
    with pytest.raises(Unsettled):
        worker.deliver()
    worker.deliver_until(lambda: scripted.published() == [first, first])
    ids = put(1, LOG)
    worker.deliver_until(lambda: scripted.published() == [first, first, *ids])


@pytest.mark.parametrize("reset", ["DISCARD ALL", "DEALLOCATE outbox_inspect"])
def test_a_session_that_loses_its_statements_goes_on(reset: str, worker: Worker, scripted: Script):
    worker.follow()
    ids: list[int] = []
    for statement in ("SELECT 1", reset, "SELECT 1"):
        execute(statement)
        ids += put(1, LOG)
        worker.receive()
        assert worker.deliver() == 1
    assert scripted.published() == ids
    assert follows(worker.log)


def test_a_message_from_the_log_is_the_same_as_from_the_table(worker: Worker, scripted: Script):
    worker.follow()
    payload = {"text": "żółw 🐢", "number": 1.5, "large": 2**60, "null": None}
    headers = {"trace": "ä", "n": 1}
    with transaction.atomic(using=LOG):
        message = enqueue("t", payload, key="ключ", topic="ü", headers=headers, using=LOG)
    message.refresh_from_db()
    worker.deliver_until(lambda: bool(scripted.batches))
    (found,) = scripted.batches[0]
    assert follows(worker.log)
    assert found == Message(
        message.pk,
        str(message.message_id),
        "t",
        "ü",
        "ключ",
        found.payload,
        headers,
        message.occurred_at,
        0,
    )
    assert json.loads(found.payload) == payload


def test_only_messages_of_the_publisher_that_are_due_come_from_the_log(worker: Worker, scripted: Script):
    worker.follow()
    with transaction.atomic(using=LOG):
        enqueue("t", 1, using=LOG, delay=60)
        put(1, LOG, publisher="other")
        (id,) = put(1, LOG)
    worker.receive()
    assert worker.deliver() == 1
    assert scripted.published() == [id]


def test_what_a_savepoint_or_a_transaction_rolls_back_is_not_delivered(worker: Worker, scripted: Script):
    worker.follow()
    with suppress(ZeroDivisionError), transaction.atomic(using=LOG):
        enqueue("t", 1, using=LOG)
        raise ZeroDivisionError
    with transaction.atomic(using=LOG):
        kept = [enqueue("t", 1, using=LOG).pk]
        with suppress(ZeroDivisionError), transaction.atomic(using=LOG):
            enqueue("t", 2, using=LOG)
            raise ZeroDivisionError
        with transaction.atomic(using=LOG):
            kept.append(enqueue("t", 3, using=LOG).pk)
    worker.receive()
    assert worker.deliver() == 2
    assert scripted.published() == kept
    assert follows(worker.log)


def test_a_transaction_that_stays_open_holds_up_no_other_and_comes_from_the_log(worker: Worker, scripted: Script):
    worker.follow()
    with open_transaction(LOG) as cursor:
        late = insert(cursor)
        for _ in range(3):
            (id,) = put(1, LOG)
            worker.receive()
            assert worker.deliver() == 1
            assert scripted.published()[-1] == id
            assert not worker.lists()
        cursor.connection.commit()
        worker.receive()
        assert worker.deliver() == 1
    assert scripted.published()[-1] == late
    assert follows(worker.log)


def test_what_a_transaction_writes_that_is_open_when_the_log_begins_is_delivered(worker: Worker, scripted: Script):
    """PostgreSQL begins to read its log when such transactions have ended."""
    with open_transaction(LOG) as cursor:
        early = insert(cursor)
        worker.deliver()
        ids = put(2, LOG)
        worker.deliver_until(lambda: scripted.published() == ids)
        assert not follows(worker.log)
        cursor.connection.commit()
    worker.follow()
    assert scripted.published() == [*ids, early]


def test_a_transaction_that_is_larger_than_a_batch_is_read_from_the_table(worker: Worker, scripted: Script):
    worker.follow()
    ids = put(5, LOG, keys=2)
    worker.receive()
    for _ in range(4):
        worker.deliver(2)
    assert scripted.published() == ids
    worker.follow()
    more = put(2, LOG)
    worker.receive()
    assert worker.deliver(2) == 2
    assert scripted.published() == ids + more


@pytest.mark.parametrize("end", ["too many messages", "connection lost"])
def test_a_log_that_ends_during_a_claim_passes_no_message(
    end: str, new_worker: Callable[..., Worker], scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    """What it had brought is forgotten, and a sample that was taken before must not be added to the position."""
    worker = new_worker(log_look_interval=0.0)
    worker.follow()
    feed = worker.log._feed
    assert feed is not None
    ids = [id for _ in range(10) for id in put(1, LOG)]
    eventually(lambda: len(feed._waiting) == 10)
    # The first batch adds the sample of an earlier claim, and the second one takes its own.
    assert [worker.deliver(2), worker.deliver(2)] == [2, 2]
    sample = worker.log._sample
    assert sample is not None

    def commit() -> None:
        ids.extend(put(1, LOG))
        connections[LOG].close()

    def end_first(row: Any) -> Inspection:
        monkeypatch.undo()
        committing = threading.Thread(target=commit)
        committing.start()
        committing.join()
        eventually(lambda: feed.has_reached(sample.lsn))
        if end == "too many messages":
            feed._max_bytes = 0
        else:
            execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        eventually(lambda: feed.ended)
        return Inspection.read(row)

    monkeypatch.setattr(Inspection, "read", end_first)
    worker.deliver(2)
    assert feed.ended
    worker.deliver_until(lambda: len(scripted.published()) >= len(ids))
    assert scripted.published() == ids


@pytest.mark.parametrize("change", ["DROP PUBLICATION", "ALTER PUBLICATION"])
def test_a_publication_that_is_changed_for_a_while_loses_no_message(worker: Worker, scripted: Script, change: str):
    worker.follow()
    # Without it, the server refuses to go on. With a changed one, it does not.
    execute(f"{change} django_outbox {'SET (publish = delete)' if change.startswith('ALTER') else ''}")
    ids = put(2, LOG)
    execute("DROP PUBLICATION IF EXISTS django_outbox")
    publish()
    ids += put(2, LOG)
    worker.deliver_until(lambda: scripted.published() == ids)
    worker.log._open_at = 0.0
    worker.follow()


def test_transactions_without_messages_do_not_pile_up_in_the_position(worker: Worker):
    worker.follow()
    for _ in range(20):
        execute("SELECT pg_current_xact_id()")
        put(1, LOG)
        worker.receive()
        worker.deliver()
    passed = StreamPosition.objects.using(LOG).get().passed
    assert len(passed.split(",")) < 10


def test_a_log_that_is_behind_is_not_waited_for(
    new_worker: Callable[..., Worker], scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    worker = new_worker(log_patience=0.05, log_look_interval=0.0)
    worker.follow()

    is_behind = threading.Event()

    def read_nothing(self: LogReader, *_: object) -> list[Any]:
        is_behind.set()
        time.sleep(0.05)
        return []

    monkeypatch.setattr(LogReader, "read", read_nothing)
    assert is_behind.wait(60)
    ids = put(2, LOG)
    worker.deliver_until(lambda: scripted.published() == ids)
    assert not follows(worker.log)
    monkeypatch.undo()
    worker.follow()
    assert scripted.published() == ids


def test_one_worker_reads_the_log_and_another_takes_over_when_it_ends(
    new_worker: Callable[..., Worker], scripted: Script
):
    first, second = new_worker(), new_worker()
    first.follow()
    second.deliver()
    put(2, LOG)
    first.receive()
    assert second.deliver() == 0
    assert first.deliver() == 2
    first.source.close()
    put(2, LOG)
    second.source.stream.next_look = 0.0
    second.deliver_until(lambda: len(scripted.published()) == 4)
    second.follow()


def test_a_worker_that_stands_by_takes_no_wake_up_of_the_one_that_reads_the_log(new_worker: Callable[..., Worker]):
    first, second = new_worker(), new_worker()
    first.follow()
    second.deliver()
    assert second.source.wake_ups == set()
    # Nothing would wake it when the other one ends.
    assert second.source.longest_wait(0.1) == second.source.longest_wait(60) <= 2
    assert first.source.longest_wait(60) == 60
    assert first.source.wake_ups > {"default"}


def test_a_worker_that_stands_by_delivers_if_the_other_one_does_not(
    new_worker: Callable[..., Worker], scripted: Script
):
    first, second = (new_worker(log_standby_time=0.2, standby_interval=0.0) for _ in range(2))
    first.follow()
    ids = put(2, LOG)
    second.deliver_until(lambda: scripted.published() == ids)
    first.receive()
    assert first.deliver() == 0
    ids += put(1, LOG)
    first.receive()
    assert first.deliver() == 1
    assert scripted.published() == ids


def test_a_worker_that_reads_the_log_goes_on_as_soon_as_another_one_leaves_the_position(worker: Worker):
    worker.follow()
    with open_transaction(LOG) as cursor:
        cursor.execute("SELECT FROM django_outbox_streamposition FOR UPDATE")
        put(1, LOG)
        worker.receive()
        assert [worker.deliver() for _ in range(3)] == [0, 0, 0]
        cursor.connection.rollback()
        assert worker.deliver() == 1


@pytest.mark.parametrize("problem", ["wal_level", "publication"])
def test_a_server_that_does_not_permit_it_is_searched_and_the_log_says_so_once(
    problem: str,
    new_worker: Callable[..., Worker],
    scripted: Script,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    worker = new_worker(log_open_interval=0.0)
    if problem == "publication":
        execute("DROP PUBLICATION django_outbox")
        remedy = SET_UP.format(alias=LOG)
    else:
        monkeypatch.setattr(LogReader, "start", refuse)
        remedy = "logical decoding requires wal_level >= logical"
    try:
        for count in range(1, 5):
            put(1, LOG)
            worker.deliver_until(partial(has_passed, scripted, count))
            time.sleep(0.1)
    finally:
        if problem == "publication":
            publish()
    (warning,) = [record.getMessage() for record in caplog.records if "log" in record.getMessage()]
    assert remedy in warning
    assert not follows(worker.log)


def test_the_end_of_the_log_is_logged_although_the_worker_has_a_new_connection(
    worker: Worker, caplog: pytest.LogCaptureFixture
):
    worker.follow()
    feed = worker.log._feed
    assert feed is not None
    execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    eventually(lambda: feed.ended)
    connections[LOG].close()
    worker.deliver()
    assert [record for record in caplog.records if "is not read" in record.getMessage()]


def test_no_limit_of_the_database_ends_a_connection_that_reads_a_large_transaction(log: PostgreSQL):
    known = {name for (name,) in execute("SELECT name FROM pg_settings")}
    wanted = ("statement_timeout", "lock_timeout", "transaction_timeout", "idle_session_timeout")
    ((table,),) = execute("SELECT %s::regclass::oid", [OutboxMessage._meta.db_table])
    for name in known.intersection(wanted):
        execute(f"ALTER DATABASE outbox SET {name} = '300ms'")
    # The reader is silent while the messages are written.
    execute("ALTER DATABASE outbox SET wal_sender_timeout = 0")
    try:
        with closing(LogReader(connections[LOG].get_connection_params(), "default", is_stopping=bool)) as reader:
            reader.start("outbox_limits", table)
            ids = put(1000, LOG, payload="x" * 10_000)
            # The server waits for the reader in the middle of the transaction.
            time.sleep(0.6)
            read: list[int] = []
            while len(read) < len(ids):
                read += [message.id for part in reader.read(1.0, 1_000_000) for message in part.messages]
            time.sleep(0.6)
            assert reader.read(0.1, 1_000_000) == []
    finally:
        execute("ALTER DATABASE outbox RESET ALL")
    assert read == ids


def refuse(self: LogReader, slot: str, table: int) -> None:
    """Refuse as the server does without wal_level = logical."""
    raise LogUnavailable("logical decoding requires wal_level >= logical")


def test_a_message_that_is_committed_just_before_the_log_begins_is_delivered(
    worker: Worker, scripted: Script, monkeypatch: pytest.MonkeyPatch
):
    begins = threading.Event()
    start = LogReader.start

    def start_later(self: LogReader, slot: str, table: int) -> None:
        assert begins.wait(60)
        start(self, slot, table)

    monkeypatch.setattr(LogReader, "start", start_later)
    worker.deliver_until(worker.opens)
    ids = put(1, LOG)
    begins.set()
    worker.receive()
    worker.follow()
    assert scripted.published() == ids


@pytest.fixture
def absent_standby() -> Iterator[Callable[[], None]]:
    """Let commits with `synchronous_commit = on` wait for a standby that is absent, until it is called."""

    def reset() -> None:
        for setting in ("synchronous_standby_names", "synchronous_commit"):
            execute(f"ALTER SYSTEM RESET {setting}")
        execute("SELECT pg_reload_conf()")

    execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    execute("ALTER SYSTEM SET synchronous_commit = 'local'")
    execute("SELECT pg_reload_conf()")
    eventually(lambda: execute("SHOW synchronous_commit") == [("local",)])
    yield reset
    reset()


@contextmanager
def committing(cursor: Any) -> Iterator[None]:
    """Commit in a thread, and wait until the commit waits for the standby; wait for its end after the block."""
    thread = threading.Thread(target=cursor.connection.commit)
    thread.start()
    eventually(lambda: execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
    try:
        yield
    finally:
        thread.join(60)


def begin(cursor: Any) -> int:
    cursor.execute("SET LOCAL synchronous_commit = 'on'")
    cursor.execute("SELECT pg_current_xact_id()::text::bigint")
    return int(cursor.fetchone()[0])


def wait_for_walsender(xid: int) -> None:
    """Wait until the creation of a slot waits for the end of a transaction."""
    sql = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND transactionid::text::bigint = %s"
    eventually(lambda: execute(sql, [xid]), f"the slot waits for {xid}")


def test_a_message_is_delivered_when_the_synchronous_standby_has_its_transaction(
    worker: Worker, scripted: Script, absent_standby: Callable[[], None]
):
    worker.follow()
    with open_transaction(LOG) as cursor:
        begin(cursor)
        late = insert(cursor)
        with committing(cursor):
            worker.receive()
            assert worker.deliver() == 0
            ids = put(1, LOG)
            worker.receive()
            assert worker.deliver() == 1
            absent_standby()
    worker.deliver_until(lambda: scripted.published() == [*ids, late])


def test_a_transaction_that_is_in_the_log_before_it_begins_and_visible_later_is_delivered(
    worker: Worker, scripted: Script, absent_standby: Callable[[], None]
):
    """The log does not bring it: the slot waits for the transactions that it knows, and not for newer ones."""
    with open_transaction(LOG) as first, open_transaction(LOG) as second, open_transaction(LOG) as third:
        second.connection.rollback()
        third.connection.rollback()
        first_xid = begin(first)
        worker.deliver_until(worker.opens)
        wait_for_walsender(first_xid)
        second_xid = begin(second)
        first.connection.rollback()
        wait_for_walsender(second_xid)
        begin(third)
        late = insert(third)
        with committing(third):
            second.connection.rollback()
            worker.follow()
            absent_standby()
    ids = put(1, LOG)
    worker.deliver_until(lambda: ids[0] in scripted.published())
    worker.follow()
    assert sorted(scripted.published()) == [late, *ids]


def test_the_source_changes_again_and_again_while_messages_are_written(scripted: Script):
    ids: list[int] = []
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            ids.extend(put(2, LOG, keys=3))
            time.sleep(0.002)
        connections[LOG].close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for source in ("log", "table", "log", "snapshot", "table", "snapshot", "log"):
            publishers = {"default": {**SCRIPTED, "SOURCE": source}}
            with (
                override_settings(OUTBOX={"PUBLISHERS": publishers}),
                running_relay(using=LOG, workers=2, limits=QUICK),
            ):
                before = len(scripted.published())
                eventually(partial(has_passed, scripted, before + 50))
                if source == "log":
                    eventually(lambda: execute("SELECT 1 FROM pg_replication_slots WHERE confirmed_flush_lsn > '0/0'"))
                    before = len(scripted.published())
                    eventually(partial(has_passed, scripted, before + 50))
    finally:
        ended.set()
        thread.join()
    with Relay(using=LOG) as relay:
        relay.drain()
    assert_delivered_once_in_order(scripted, ids)


def has_passed(scripted: Script, count: int) -> bool:
    return len(scripted.published()) >= count


def test_handlers_get_each_message_of_the_log_once():
    handled: list[Any] = []
    publishers = {"default": {**HANDLERS, "SOURCE": "log"}}
    with override_settings(OUTBOX={"PUBLISHERS": publishers}), scratch_handlers():
        handler("t")(lambda payload, message: handled.append(payload))
        with running_relay(using=LOG, workers=2, limits=QUICK):
            eventually(lambda: execute("SELECT 1 FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"))
            for first in range(0, 20, 4):
                put(4, LOG, keys=2, first=first)
            eventually(lambda: len(handled) >= 20)
    assert sorted(handled) == [*range(20)]


def find_codes() -> set[str]:
    return {finding.code for finding in read_status(LOG).verdicts}


@pytest.fixture
def old_relay() -> Iterator[None]:
    report_relays(LOG, "web-1:9:abcdef", hours=1)
    yield
    Heartbeat.objects.using(LOG).all().delete()


@pytest.mark.usefixtures("old_relay")
def test_the_status_warns_that_no_relay_reads_the_log_until_one_does(worker: Worker):
    put(1, LOG)
    worker.deliver()
    stream, _ = read_status(LOG).streams
    assert (stream.publisher, stream.log_is_read, stream.log_kept) == ("default", False, None)
    assert "log_not_read" in find_codes()
    worker.follow()
    stream, _ = read_status(LOG).streams
    assert stream.log_is_read
    assert stream.log_kept is not None
    assert not find_codes() & {"log_kept", "log_not_read"}
    execute("DROP PUBLICATION django_outbox")
    try:
        put(1, LOG)
        worker.deliver_until(lambda: not worker.opens())
        eventually(lambda: "log_not_read" in find_codes())
    finally:
        publish()


def test_the_status_warns_of_the_log_that_an_open_transaction_keeps(worker: Worker, monkeypatch: pytest.MonkeyPatch):
    worker.follow()
    (before, _) = read_status(LOG).streams
    with open_transaction(LOG) as cursor:
        cursor.execute("SELECT pg_current_xact_id()")
        put(20, LOG, payload="x" * 100_000)
        worker.deliver_until(lambda: worker.deliver() == 0)
        monkeypatch.setattr(verdicts, "MAX_LOG_KEPT", before.log_kept)
        (stream, _) = read_status(LOG).streams
        assert (stream.log_kept or 0) > (before.log_kept or 0)
        (finding,) = (each for each in read_status(LOG).verdicts if each.code == "log_kept")
    assert "for the relay of publisher 'default'" in finding.sentence


@pytest.mark.usefixtures("old_relay")
def test_a_relay_of_a_paused_publisher_need_not_read_the_log():
    assert "log_not_read" in find_codes()
    pause = Pause.objects.using(LOG).create(publisher="default")
    assert "log_not_read" not in find_codes()
    pause.delete()


@pytest.mark.usefixtures("fresh_figures")
def test_only_publishers_that_are_fed_from_the_log_have_its_gauge(worker: Worker):
    worker.follow()
    publishers = {**OUTBOX["PUBLISHERS"], "other": {**SCRIPTED, "SOURCE": "snapshot"}}
    with override_settings(OUTBOX={"PUBLISHERS": publishers}):
        [family] = [each for each in OutboxCollector([LOG]).collect() if each.name.endswith("stream_log_kept_bytes")]
    assert [each.labels["publisher"] for each in family.samples] == ["default"]


def test_a_slot_that_the_server_invalidates_loses_no_message(worker: Worker, scripted: Script):
    put(1, LOG)
    worker.follow()
    slots = "SELECT active_pid FROM pg_replication_slots WHERE slot_name LIKE 'outbox%'"
    reader = execute(slots)
    execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    execute("SELECT pg_reload_conf()")
    try:
        with open_transaction(LOG) as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            ids = put(2, LOG, keys=1)
            for _ in range(4):
                execute("SELECT pg_logical_emit_message(false, 'test', 'x'), pg_switch_wal()")
            eventually(lambda: [execute("CHECKPOINT"), execute(slots)][1] != reader, "the server ends the slot")
            ids += put(2, LOG, keys=1)
            worker.deliver_until(lambda: scripted.published()[1:] == ids)
    finally:
        execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        execute("SELECT pg_reload_conf()")
    worker.follow()
    assert execute(slots) != reader
    ids += put(2, LOG, keys=1)
    worker.receive()
    worker.deliver_until(lambda: scripted.published()[1:] == ids)
