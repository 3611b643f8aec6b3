"""Real servers and real processes, broken on purpose, in a short run; and the suite's own parts."""

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.faults import ledger
from tests.faults.breaking import Turns
from tests.faults.kinds import faults_for
from tests.faults.ledger import Ledger
from tests.faults.plan import Plan
from tests.faults.refusals import Refusals
from tests.faults.report import table
from tests.faults.run import Run
from tests.faults.servers import TABLE
from tests.faults.windows import Window
from tests.support.children import Nursery, SuiteError
from tests.support.jars import KAFKA
from tests.support.waiting import eventually

SEED = int(os.environ.get("OUTBOX_FAULTS_SEED", "7"))
"""Seed of the messages and faults of the short runs."""


def run(logs: Path, **options: Any) -> None:
    result = Run(Plan(seed=SEED, minutes=6, keep_logs=logs, **options)).execute()
    if not result.good:
        pytest.fail(table(result), pytrace=False)
    assert len(result.faults) == options["faults"]
    # Some faults write messages too.
    assert result.ledger.committed >= options["messages"]


@pytest.mark.slow
def test_every_promise_is_kept_on_postgresql_while_everything_breaks_once(tmp_path: Path):
    run(tmp_path, database="postgresql", messages=5_000, keys=200, faults=len(faults_for("rabbitmq")), notify=True)


@pytest.mark.slow
def test_every_promise_is_kept_by_streams_under_faults(tmp_path: Path):
    """A relay lists the messages of its stream, too, until it reads the log."""
    of_relays = ("all-relays-killed", "relay-paused-too-long", "relay-stopped-in-hand")
    kinds = (*of_relays, "backends-ended", "database-killed", "snapshot-held")
    run(tmp_path, database="postgresql", source="log", messages=2_000, faults=len(kinds), kinds=kinds, notify=True)


@pytest.mark.slow
def test_every_promise_is_kept_on_mariadb_under_faults(tmp_path: Path):
    """The faults that depend on the database, and messages that are locked or wait."""
    of_database = tuple(each.name for each in faults_for("rabbitmq") if each.lane == "database")
    kinds = (*of_database, "database-half-open", "locks-kept", "keys-waiting")
    run(
        tmp_path,
        database="mariadb",
        messages=3_000,
        keys=100,
        faults=len(kinds),
        kinds=kinds,
        failed_blocks_key=True,
        unroutable=0.01,
    )


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "nats"])
def test_every_promise_is_kept_by_other_brokers_while_they_break(tmp_path: Path, broker: str):
    kinds = tuple(each.name for each in faults_for(broker) if each.lane == "broker")
    run(tmp_path, database="postgresql", broker=broker, messages=2_000, keys=50, faults=len(kinds), kinds=kinds)


@pytest.mark.slow
@pytest.mark.skipif(not KAFKA.is_usable, reason=KAFKA.remedy)
def test_every_promise_is_kept_by_a_cluster_of_kafka_while_its_brokers_fail(tmp_path: Path):
    kinds = ("leader-killed", "leader-frozen", "controller-killed", "broker-unreachable", "all-relays-killed")
    run(tmp_path, broker="kafka", messages=1_500, keys=50, faults=len(kinds), kinds=kinds)


def test_a_kind_of_fault_that_the_broker_does_not_have_is_refused_by_name():
    with pytest.raises(SuiteError, match="redis has no faults of the kinds queues-full"):
        Run(Plan(broker="redis", kinds=("purge", "queues-full"))).schedule()


def test_the_same_seed_makes_the_same_faults():
    def names(seed: int) -> dict[str, list[tuple[float, str]]]:
        lanes = Run(Plan(seed=seed, faults=40)).schedule()
        return {lane: [(due, fault.name) for due, fault, _ in faults] for lane, faults in lanes.items()}

    assert names(1) == names(1)
    assert names(1) != names(2)


def test_a_process_whose_suite_ends_by_an_exception_is_ended_too():
    with pytest.raises(KeyboardInterrupt), Nursery() as nursery:
        child = nursery.start("sleeper", ["sleep", "300"])
        raise KeyboardInterrupt
    assert child.code == -signal.SIGKILL
    assert not nursery.directory.exists()


class Table:
    """The table of a run, in memory."""

    undelivered = "available_at IS NOT NULL"
    seconds = "(julianday({}) - 2440587.5) * 86400.0"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(sql, params).fetchall()


class Books:
    """Journals and a table, to be filled in and checked."""

    def __init__(self, folder: Path, database: Any) -> None:
        self._writer, self._arrivals = folder / "writer", folder / "arrivals"
        self._dead, self._operations, self._late = folder / "dead", folder / "operations", folder / "late"
        self._database = database
        for journal in (self._arrivals, self._dead, self._operations, self._late):
            journal.touch()

    def wrote(self, *lines: str) -> None:
        # By default one transaction after the other.
        timed = (f"{line} {n} {n}.5" if line.count(" ") == 3 else line for n, line in enumerate(lines))
        self._writer.write_text("".join(f"{line}\n" for line in timed))

    def arrived(self, *lines: str) -> None:
        full = (f"{line} 0 100" if line.count(" ") == 2 else line for line in lines)
        self._arrivals.write_text("".join(f"{line} {100 + n}\n" for n, line in enumerate(full)))

    def operated(self, *lines: str) -> None:
        self._operations.write_text("".join(f"{line}\n" for line in lines))

    def copied(self, *ids: str) -> None:
        self._dead.write_text("".join(f"{id} 0\n" for id in ids))

    def published_late(self, *lines: str) -> None:
        self._late.write_text("".join(f"{line}\n" for line in lines))

    def row(self, id: str, **columns: Any) -> None:
        names = ", ".join(["message_id", *columns])
        places = ", ".join("?" for _ in range(1 + len(columns)))
        self._database.rows(f"INSERT INTO {TABLE} ({names}) VALUES ({places})", [id, *columns.values()])

    def check(self, refusals: Refusals | None = None, **options: Any) -> Ledger:
        journals = ledger.Journals([self._writer], self._arrivals, self._dead, self._operations, self._late)
        return ledger.check(journals, self._database, refusals or Refusals(), **options)

    def broken(self, refusals: Refusals | None = None, **options: Any) -> dict[str, int]:
        return {name: count for name, count in self.check(refusals, **options).promises.items() if count}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    columns = "available_at, processed_at, failed_at, first_error_at, last_error_at, dead_lettered_at"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            f"CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, message_id TEXT, {columns}, "
            f"attempts INTEGER DEFAULT 0, error TEXT DEFAULT '')"
        )
        yield Books(tmp_path, Table(connection))


def test_the_ledger_is_clean_when_all_that_was_committed_arrived_in_order(books: Books):
    books.wrote("a1 key-1 1 good", "b1 key-2 1 good", "00 key-1 2 rolled-back", "a2 key-1 2 good", "c0 - 0 good")
    books.arrived("c0 - 0", "b1 key-2 1", "a1 key-1 1", "a2 key-1 2")
    checked = books.check()
    assert checked.kept
    assert (checked.committed, checked.rolled_back, checked.arrived) == (4, 1, 4)


NUMBERED = [f"{line} good 0 9" for line in ("a1 key-1 1", "a2 key-1 2", "a3 key-1 3", "b1 key-2 1")]
"""Of one writer, whose numbers tell the order even if the times of its transactions do not."""

LOST, PHANTOM, DISORDER = "lost", "arrived, but never committed", "out of order within a key"

ARRIVALS: dict[str, tuple[list[str], list[str], dict[str, int]]] = {
    "lost": (["a1 key-1 1 good", "a2 key-1 2 good"], ["a1 key-1 1"], {LOST: 1}),
    "never committed": (["a1 key-1 1 rolled-back"], ["a1 key-1 1", "ff key-1 2"], {PHANTOM: 2}),
    "changed on the way": (["a1 key-1 1 good"], ["a1 key-2 1"], {LOST: 1, PHANTOM: 1}),
    "out of order": (NUMBERED, ["a2 key-1 2", "b1 key-2 1", "a1 key-1 1", "a3 key-1 3"], {DISORDER: 1}),
    "in any order, because transactions overlap": (
        ["a1 key-1 1 good 0 2", "a2 key-1 1 good 1 3", "a3 key-1 2 good 4 5"],
        ["a2 key-1 1", "a1 key-1 1", "a3 key-1 2"],
        {},
    ),
    "not in the order in which the key was locked": (
        ["a1 key-2 1 good 1 1", "a2 key-2 1 good 1.1 1.1"],
        ["a2 key-2 1", "a1 key-2 1"],
        {DISORDER: 1},
    ),
}


@pytest.mark.parametrize(("written", "arrived", "broken"), ARRIVALS.values(), ids=ARRIVALS)
def test_the_ledger_compares_what_was_written_with_what_arrived(
    books: Books, written: list[str], arrived: list[str], broken: dict[str, int]
):
    books.wrote(*written)
    books.arrived(*arrived)
    assert books.broken() == broken


def test_a_message_that_is_sent_again_later_is_not_out_of_order(books: Books):
    books.wrote("a1 key-1 1 good", "a2 key-1 2 good")
    books.arrived("a1 key-1 1", "a2 key-1 2", "a1 key-1 1", "a2 key-1 2 1 100")
    checked = books.check()
    assert checked.broken[ledger.Promise.OUT_OF_ORDER] == 0
    assert (checked.sent_again, checked.redelivered) == (1, 1)


def test_what_is_sent_again_beyond_the_bound_breaks_a_promise(books: Books):
    books.wrote("a1 key-1 1 good")
    books.arrived("a1 key-1 1", "a1 key-1 1", "a1 key-1 1")
    checked = books.check()
    checked.sent_again_bound = 1
    assert checked.promises["sent again beyond the bound"] == 1


def test_the_ledger_tells_who_failed_and_who_should_have(books: Books):
    books.wrote("a1 key-1 1 good", "a2 key-1 2 unroutable", "a3 key-1 3 refused")
    books.arrived("a1 key-1 1")
    books.row("a1", failed_at="2026-01-01", attempts=1)
    books.row("a2", failed_at="2026-01-01", attempts=1, dead_lettered_at="2026-01-01")
    books.copied("a2")
    broken = {"failed without deserving it": 1, "have two fates": 1, "deserved to fail, and did not": 1}
    assert books.broken() == broken
    assert books.check().failed_deserved == 1


def test_the_ledger_finds_what_is_stuck(books: Books):
    books.wrote("a1 key-1 1 good", "a2 key-1 2 good")
    books.arrived("a2 key-1 2")
    for id in ("a1", "a2"):
        books.row(id, available_at="2026-01-01")
    assert books.broken() == {"lost": 1, "have two fates": 1, "stuck (pending after the drain)": 2}


def test_the_ledger_finds_ids_that_do_not_follow_the_commits(books: Books):
    books.wrote("a1 key-1 1 good", "a2 key-1 2 good")
    books.arrived("a1 key-1 1", "a2 key-1 2")
    books.row("a2", processed_at="2026-01-01")
    books.row("a1", processed_at="2026-01-01")
    assert books.broken() == {"ids not in the order of commits": 1}


def test_an_attempt_counts_as_odd_unless_a_queue_was_full_at_that_time(books: Books):
    books.wrote("a1 key-1 1 good", "a2 key-1 2 good")
    books.arrived("a1 key-1 1", "a2 key-1 2")
    books.row("a1", processed_at="2026-01-01", attempts=1)
    refused = {"first_error_at": "2026-01-01 00:00:00", "last_error_at": "2026-01-01 00:00:01"}
    books.row("a2", processed_at="2026-01-01", attempts=3, **refused)
    assert books.broken() == {"counted an attempt in an outage": 1}
    refusals = Refusals()
    refusals.windows.append((1_767_225_600 - 1, 1_767_225_600 + 2))
    assert books.broken(refusals) == {}


def test_a_message_that_an_operator_mended_must_arrive_and_one_that_was_discarded_must_not(books: Books):
    books.wrote("a1 key-1 1 unroutable", "a2 key-1 2 unroutable", "a3 key-1 3 good", "a4 key-1 4 unroutable")
    books.operated("a1 requeue 50 51", "a1 mend 52 53", "a2 discard 52 53", "a4 mend 54 55")
    books.arrived("a3 key-1 3", "a1 key-1 1", "a2 key-1 2")
    assert books.broken() == {"lost": 1, "arrived, but never committed": 1}


def test_the_ledger_finds_a_message_that_passed_a_failed_one_that_blocks_its_key(books: Books):
    books.wrote("a1 key-1 1 unroutable", "a2 key-1 2 good", "b1 key-2 1 good", "a3 key-1 3 good")
    books.operated("a1 discard 101.5 102")
    books.arrived("b1 key-2 1", "a2 key-1 2", "a3 key-1 3")
    assert books.broken(blocks_key=True) == {"passed a failed one that blocks its key": 1}
    assert books.broken() == {}


def test_a_mended_message_arrives_in_its_place_only_if_failed_messages_block_their_key(books: Books):
    books.wrote("a1 key-1 1 unroutable", "a2 key-1 2 good")
    books.operated("a1 mend 50 51")
    books.arrived("a2 key-1 2", "a1 key-1 1")
    assert books.broken() == {}
    assert books.broken(blocks_key=True) == {"out of order within a key": 1}


def test_the_ledger_compares_dead_letters_with_the_rows(books: Books):
    books.wrote(*(f"a{n} key-1 {n} unroutable" for n in (1, 2, 3, 4)), "a5 key-1 5 good")
    books.row("a1", failed_at="2026-01-01", dead_lettered_at="2026-01-01")
    books.row("a2", failed_at="2026-01-01", dead_lettered_at="2026-01-01")
    books.row("a3", failed_at="2026-01-01")
    books.row("a4", failed_at="2026-01-01")
    books.arrived("a5 key-1 5")
    books.copied("a1", "a3", "a5")
    assert books.broken() == {
        "dead-lettered without a copy": 1,
        "copied, but never failed": 1,
        "copies not noted, beyond the bound": 2,
    }


def test_the_ledger_finds_what_arrived_while_it_was_held(books: Books):
    books.wrote("a1 key-2 1 good", "a2 key-4 1 good")
    books.arrived("a1 key-2 1", "a2 key-4 1")  # at 100 and 101
    held = Window("held", 99, 105, {"a1": 100.5, "a2": 100.5}, keys=frozenset({"key-2", "key-4"}))
    assert books.broken(windows=[held]) == {"arrived while held, paused or not due": 1}


def test_the_ledger_finds_what_was_enqueued_and_arrived_while_its_type_was_paused(books: Books):
    # Odd keys and ids without a key have the other type.
    lines = ("a1 key-2 1 good", "a2 key-4 1 good", "a3 key-1 1 good", "a4 - 0 good", "a5 - 0 good")
    times = ("98 98.5", "99.5 99.6", "99.5 99.6", "99.5 99.6", "99.5 99.6")
    books.wrote(*(f"{line} {time}" for line, time in zip(lines, times, strict=True)))
    books.arrived(*(line.removesuffix(" good") for line in lines))
    paused = Window("paused", 99, 110, {}, types=frozenset({"quorum.written"}))
    assert books.broken(windows=[paused]) == {"arrived while held, paused or not due": 2}


def test_the_ledger_finds_what_was_held_up_by_messages_of_others(books: Books):
    books.wrote(*(f"a{n} key-{n} 1 good {moment} {moment}" for n, moment in ((1, 93), (2, 93), (3, 97), (4, 80))))
    books.arrived(*(f"a{n} key-{n} 1" for n in (1, 2, 3, 4)))
    locked = Window("locked", 90, 103, {}, keys=frozenset({"key-1"}))
    checked = books.check(windows=[locked])
    assert (checked.went_on, checked.broken[ledger.Promise.HELD_UP]) == (2, 1)  # key-3 waited for 5 s


def test_the_ledger_finds_what_was_published_after_its_claim_was_lost(books: Books):
    books.wrote("a1 key-1 1 good")
    books.arrived("a1 key-1 1")
    books.published_late("a1 4.123")
    assert books.broken() == {"published after the claim was lost": 1}


def test_a_fault_that_is_to_be_alone_waits_for_the_others_and_lets_none_begin():
    turns, order = Turns(), []

    def take(name: str, *, alone: bool) -> threading.Thread:
        def work() -> None:
            with turns.take(alone=alone):
                order.append(name)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    with turns.take(alone=False):
        take("beside", alone=False).join(10)
        threads = [take("alone", alone=True)]
        eventually(turns._entrance.locked)
        threads.append(take("after", alone=False))
        assert order == ["beside"]
    for thread in threads:
        thread.join(10)
    assert order == ["beside", "alone", "after"]
