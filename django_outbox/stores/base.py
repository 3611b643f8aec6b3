"""The contract of a store: how a batch is claimed, and how its messages' new states are written."""

import abc
import datetime
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.utils.module_loading import import_string

from django_outbox.db.errors import may_pass, shows_conflict, shows_refused_row
from django_outbox.db.fields import partition_of
from django_outbox.db.functions import DatabaseNow
from django_outbox.db.transactions import is_usable
from django_outbox.messages import Message
from django_outbox.models import HELD_BY_PAUSE, KeyLock, OutboxMessage, Pause, StreamPosition
from django_outbox.stores.claiming import ClaimQueries, Row
from django_outbox.stores.dialect import Dialect
from django_outbox.stores.locks import Lease, lease_number, take_lease
from django_outbox.stores.rows import (
    NONE,
    Backend,
    Claim,
    ClaimRequest,
    Held,
    NewRow,
    Purged,
    Settlement,
    error_rows,
    read_messages,
)
from django_outbox.stores.timeline import Piece
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe, some_ids

CHANGED = "another program changed or deleted them in the meantime"
"""Why claimed messages cannot be settled although they are still this claim's."""

SKIPPED = "a trigger or a policy skips changes without an error:"
"""Why messages have no new state although they are still pending."""


# A stretch of the index of the partitions; the table itself is not read. `late` is 1 for a message that is not due.
STRETCH = """(
    SELECT {{table}}.partition AS number, id, CASE WHEN available_at <= {now} THEN 0 ELSE 1 END AS late
    FROM {{table}} {partitions}
    WHERE {undelivered} AND {publisher} AND {{table}}.partition > %s
    ORDER BY {{table}}.partition, id LIMIT %s
) stretch"""

SUM_UP = "SELECT COUNT(*), COALESCE(MAX(number), 0), COALESCE(SUM(1 - late), 0) FROM {stretch}"

# The least id decides, and its last bit carries `late`.
DUE_HEADS = "SELECT number FROM {stretch} GROUP BY number HAVING MIN(2 * id + late) %% 2 = 0 ORDER BY number"

NOT_HELD_DELAY = datetime.timedelta(seconds=1)
"""The delay of a message that cannot be held. Without it, relays would claim the message all the time."""


_TABLES: dict[str, type[Model]] = {
    "{table}": OutboxMessage,
    "{locks}": KeyLock,
    "{pauses}": Pause,
    "{positions}": StreamPosition,
}
"""The tables in statements."""


class Store(ClaimQueries):
    """Claims and settles over one Django connection. An instance belongs to one thread, as its connection does."""

    DELETED: ClassVar[str]
    """Deletes the messages of a list of ids."""
    PROCESSED: ClassVar[str]
    """Marks the messages of a list of ids as processed. Like the other statements, it changes only pending rows."""
    FAILED: ClassVar[str]
    """Marks messages as failed, given a JSON array of the fields of `Failed`."""
    RETRIED: ClassVar[str]
    """Makes messages due again later, given a JSON array of the fields of `Retried`."""

    now: ClassVar[str]
    """SQL of the database's clock, as the claim compares it with `available_at`."""

    undelivered: ClassVar[str] = "blocks_key"
    """SQL condition of the messages in the index of the partitions."""

    use_partitions: ClassVar[str] = ""
    """SQL that makes a query read that index, where the database would choose another one."""

    is_publisher: ClassVar[str] = "publisher = %s"
    """SQL condition of the messages of a publisher, given once for each placeholder."""

    no_guard: ClassVar[tuple[Any, ...]] = ()
    """Arguments of `write_states` that match every row, not only those of a claim."""

    can_wake: ClassVar[bool] = False
    """Whether the database has notifications: see `django_outbox.stores.notifications`."""

    streams: ClassVar[bool] = False
    """Whether publishers may have streams there; otherwise all messages are delivered from the table."""

    ends_idle_transactions: ClassVar[bool] = False
    """Whether the database ends the transaction of a claim that makes no query for too long."""

    def __init__(self, connection: BaseDatabaseWrapper, refused: Set[int] = NONE, passed: str = "") -> None:
        self.connection = connection
        self._refused = refused
        self._passed = passed

    @property
    def dialect(self) -> Dialect:
        """The values that the database stores unchanged."""
        return Dialect(self.connection)

    # For relays.

    @contextmanager
    def claim(self, request: ClaimRequest) -> Iterator[Claim]:
        """Lock a batch of due messages while the context is open; other relays skip it.

        A message that has a key is claimed together with all earlier ones of its key, or not at all. Leaving the
        context without `settle`, because of an exception or a crash, gives the whole batch back.
        """
        with self.transaction(request.max_seconds, transactional=request.transactional) as backend:
            yield Claim(read_messages(self.read_batch(request)), backend=backend)

    def read_batch(self, request: ClaimRequest) -> list[Row]:
        """Read the batch of a claim, and lock it where that is possible."""
        queries = type(self)(self.connection, request.refused, request.passed)
        return request.cursor.read_batch(queries, request.publisher, limit=request.limit, max_bytes=request.max_bytes)

    @abc.abstractmethod
    def transaction(self, max_seconds: float, *, transactional: bool) -> AbstractContextManager[Backend | None]:
        """Open the transaction of a claim; its value is `Claim.backend`."""

    def restore_session(self) -> None:
        """Give the session back the settings that claims have changed, where they last longer than a transaction."""

    @contextmanager
    def claim_one(self, publisher: str, message: Message, *, max_seconds: float) -> Iterator[Claim]:
        """Claim one message that was claimed before, as a transactional claim does.

        The claim is empty if the message has changed its state, or if another relay has claimed it or its key.
        """
        with self.transaction(max_seconds, transactional=True):
            yield Claim([*self.find_unchanged(publisher, message)])

    def lease(self, publisher: str, message: Message, *, seconds: float) -> Lease | None:
        """Take the lease of a message that the open transaction has claimed; it belongs to no relay after the commit.

        It lasts that many seconds unless it is renewed. Return None if another relay works on that message, or on
        another one of its key.
        """
        partition = partition_of(message.key) if message.key else 0
        number = lease_number(publisher, message.id, partition)
        return take_lease(self.connection.alias, number, message.id, seconds=seconds)

    @contextmanager
    def claim_leased(self, message: Message, lease: Lease, *, max_seconds: float) -> Iterator[Claim]:
        """Claim a message that this relay has leased, as a transactional claim does; empty if the lease was lost."""
        with self.transaction(max_seconds, transactional=True):
            yield Claim([message] if lease.lock() else [])

    def limit_statements(self, seconds: float | None) -> None:
        """Let the database cancel each statement of this transaction that takes longer; None removes the limit.

        Some databases limit only some statements, and some none.
        """

    def limit_lock_waits(self, seconds: float | None) -> None:
        """Let statements of this transaction fail that wait longer for a lock; None removes the limit.

        It matters only where the database does not notice a deadlock at once.
        """

    def wait_for_turn(self, publisher: str, seconds: float) -> bool:
        """Wait at most that long until no other transaction has a publisher's turn; return whether this one has it.

        It keeps the turn until it ends. It matters only where waits for locks are limited.
        """
        return True

    def is_taken_id(self, error: BaseException) -> bool:
        """Return whether the database gave a new row the id of another one, because its sequence is behind."""
        return False

    def check_constraints(self) -> None:
        """Check the constraints that the commit would check, if the database can do so for this transaction alone."""

    def find_unchanged(self, publisher: str, message: Message) -> list[Message]:
        """Lock a message that was claimed before; return nothing if it has changed, or belongs to another relay."""
        if message.key and not self.lock_partitions(publisher, [partition_of(message.key)]):
            return []
        rows = OutboxMessage.objects.using(self.connection.alias).due()
        rows = rows.filter(pk=message.id, publisher=publisher, attempts=message.attempts)
        return [message for _ in rows.select_for_update(skip_locked=True).values_list("pk")]

    @abc.abstractmethod
    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        """Write the new states of an open claim's messages, with one statement for each state that occurs.

        Processed messages are deleted (`delete_processed`), or their rows are kept.
        """

    def write_states(self, settlement: Settlement, *guard: Any, delete_processed: bool) -> int:
        """Write all new states except the held ones, and return the number of rows that were still the claim's.

        `guard` is what the statements of the database need in addition to know these rows.
        """
        settled = 0
        if settlement.processed:
            statement = self.DELETED if delete_processed else self.PROCESSED
            settled += self.execute_for(statement, settlement.processed, *guard)
        if settlement.failed:
            settled += self.execute(self.FAILED, [error_rows(settlement.failed, self.dialect.storable), *guard])
        if settlement.retried:
            settled += self.execute(self.RETRIED, [error_rows(settlement.retried, self.dialect.storable), *guard])
        if settled < settlement.count and guard == self.no_guard:
            self.require_states(settlement)
        return settled

    def require_states(self, settlement: Settlement) -> None:
        """Raise IntegrityError if a message is still pending, although no other transaction could change it."""
        rows = OutboxMessage.objects.using(self.connection.alias)
        final = [*settlement.processed, *(row.id for row in settlement.failed)]
        left = rows.pending().filter(pk__in=final) | rows.due().filter(pk__in=[row.id for row in settlement.retried])
        if ids := [*left.values_list("pk", flat=True)]:
            raise IntegrityError(f"{SKIPPED} {some_ids(ids)}")

    def find_refused(self, settlement: Settlement) -> dict[int, str]:
        """Return why new states of messages cannot be written, by their ids."""

        def write(ids: Sequence[int]) -> None:
            self.write_states(settlement.only({*ids}), *self.no_guard, delete_processed=False)

        return self.isolate_refused([*settlement.ids], write)

    def isolate_refused(self, ids: Sequence[int], write: Callable[[Sequence[int]], object]) -> dict[int, str]:
        """Return why messages cannot be changed, by their ids.

        All are changed in a savepoint that is rolled back; if that fails, the halves, until each culprit stands alone.
        """
        if not ids:
            return {}
        try:
            with transaction.atomic(using=self.connection.alias):
                write(ids)
                self.check_constraints()
                transaction.set_rollback(True, using=self.connection.alias)
        except DatabaseError as error:
            is_conflict = may_pass(error) and shows_conflict(error)
            if self.connection.needs_rollback or is_conflict or not is_usable(self.connection):
                raise
            if len(ids) == 1:
                return {ids[0]: describe(error)}
            half = len(ids) // 2
            return self.isolate_refused(ids[:half], write) | self.isolate_refused(ids[half:], write)
        return {}

    def write_unless_refused(self, write: Callable[[], object]) -> DatabaseError | None:
        """Change messages in a savepoint; return the error if the database refuses to change one of them."""
        try:
            with transaction.atomic(using=self.connection.alias):
                write()
                self.check_constraints()
        except DatabaseError as error:
            if self.connection.needs_rollback or not shows_refused_row(error):
                raise
            return error
        return None

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Run the statements that hold messages in a savepoint. If they fail, that is logged, and the rest stands."""
        has_savepoint = False
        try:
            with transaction.atomic(using=self.connection.alias):
                has_savepoint = True
                yield
        except DatabaseError as error:
            if self.connection.needs_rollback or not has_savepoint:
                raise
            logger.warning(
                "Messages of paused types could not be held, and are still pending: %(reason)s",
                event="relay.pauses_not_applied",
                database=self.connection.alias,
                reason=describe(error),
            )

    def find_paused_types(self, publisher: str) -> frozenset[str]:
        rows = Pause.objects.using(self.connection.alias).filter(publisher=publisher, resumed_at=None)
        return frozenset(type for alias, type in rows.values_list("publisher", "type") if type and alias == publisher)

    @abc.abstractmethod
    def purge(self, older_than: float, limit: int, after: Any) -> Purged:
        """Delete a batch of processed messages that are older than that many seconds, the oldest first.

        Continue after `after`, the `Purged.at` of the previous batch; None starts at the oldest.
        """

    # For operators.

    def lock_partitions(self, publisher: str, partitions: Collection[int]) -> set[int]:
        """Keep relays from claiming these partitions until the transaction ends, without waiting for any of them.

        Return the partitions that no relay has claimed. SQLite's transactions exclude each other, so they need no lock.
        """
        return self.own(publisher, partitions)

    # For callers of `enqueue`.

    @abc.abstractmethod
    def lock_keys(self, keys: Collection[str]) -> None:
        """Wait until no other transaction has locked any of these keys, and lock them until this one ends."""

    def add_key_locks(self) -> None:
        """Insert the rows that `lock_keys` locks, if it locks rows and some are missing."""

    @abc.abstractmethod
    def insert(self, rows: Sequence[NewRow]) -> list[str]:
        """Insert messages in their order, except messages that are in the table for their publisher.

        It costs Python a tenth of what Django's `bulk_create` does. There must be at least one row, and no more than
        one statement can hold. Return the `message_id` of each inserted row; on MySQL and MariaDB, a row that is met
        only by the INSERT counts too.
        """

    def begin(self, max_seconds: float, *, transactional: bool = False) -> Backend | None:
        """Prepare a transaction that has just begun, and return `Claim.backend`; SQLite has nothing to prepare.

        It becomes READ COMMITTED, whatever the project's default, and its time is bounded. Unless other data is written
        in it (`transactional`), its commit need not wait for the disk.
        """
        return None

    def sweep_heads(self, publisher: str, after: int, *, limit: int) -> Piece:
        stretch = STRETCH.format(
            partitions=self.use_partitions, undelivered=self.undelivered, publisher=self.is_publisher, now=self.now
        )
        params = [*[publisher] * self.is_publisher.count("%s"), after, limit]
        ((rows, until, due),) = self.fetch(SUM_UP.format(stretch=stretch), params)
        heads = self.fetch(DUE_HEADS.format(stretch=stretch), params) if due else []
        return Piece([partition for (partition,) in heads], until, rows)

    # Statements.

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement as `name_tables` completes it, and return how many rows it touched."""
        with self.connection.cursor() as session:
            session.execute(self.name_tables(sql), params)
            return int(session.rowcount)

    @abc.abstractmethod
    def execute_for(self, sql: str, ids: Sequence[int], *params: Any) -> int:
        """Run a statement that begins with a list of ids, and return how many rows it touched."""

    def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement as `name_tables` completes it, and return its rows."""
        with self.connection.cursor() as session:
            session.execute(self.name_tables(sql), params)
            return list(session.fetchall())

    def name_tables(self, sql: str) -> str:
        """Return a statement with the names of the tables, and with the condition `{others}`: not a refused message."""
        if "{others}" in sql:
            refused = ",".join(map(str, sorted(self._refused)))
            sql = sql.replace("{others}", f"AND message.id NOT IN ({refused})" if refused else "")
        for name, model in _TABLES.items():
            if name in sql:
                sql = sql.replace(name, self.connection.ops.quote_name(model._meta.db_table))
        return sql


class LockingStore(Store):
    """A store that claims in a transaction: rows are locked with SKIP LOCKED until they are settled."""

    def shows_nothing(self, request: ClaimRequest) -> bool:
        """Return whether a look without a transaction shows that nothing is due, where one is worth it."""
        cursor, has_stream = request.cursor, bool(request.passed)
        return self.connection.get_autocommit() and cursor.shows_nothing(self, request.publisher, has_stream=has_stream)

    @contextmanager
    def transaction(self, max_seconds: float, *, transactional: bool) -> Iterator[Backend | None]:
        nested = self.connection.in_atomic_block
        with transaction.atomic(using=self.connection.alias):
            yield None if nested else self.begin(max_seconds, transactional=transactional)

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        settled = self.write_states(settlement, delete_processed=delete_processed)
        if settlement.held:
            self.hold(settlement.held)
        report_lost(claim, settlement.count - settled, CHANGED)

    def hold(self, messages: Sequence[Held]) -> None:
        """Make messages wait until their types are resumed, and lock the pauses until the transaction ends.

        The lock makes `resume` wait, so that it finds all messages that were held. A message waits a moment
        instead if another transaction has locked or ended its pause, or if it cannot be held because of an error.
        """
        pauses = Pause.objects.using(self.connection.alias).select_for_update(skip_locked=True)
        pauses = pauses.filter(
            publisher__in={row.publisher for row in messages}, type__in={row.type for row in messages}
        )
        rows = OutboxMessage.objects.using(self.connection.alias).pending()
        held: set[int] = set()
        with self.holding():
            paused = set(pauses.filter(resumed_at=None).order_by("pk").values_list("publisher", "type"))
            found = {row.id for row in messages if (row.publisher, row.type) in paused}
            if found:
                rows.filter(pk__in=found).update(available_at=HELD_BY_PAUSE)
            held = found
        if left := [row.id for row in messages if row.id not in held]:
            rows.filter(pk__in=left).update(available_at=DatabaseNow() + NOT_HELD_DELAY)


def report_lost(claim: Claim, count: int, reason: str) -> None:
    """Log that some messages no longer belonged to the claim when they were settled, if there are any."""
    if count:
        ids = [message.id for message in claim.messages]
        logger.error(
            "%d of %d claimed messages (ids %d to %d) were not settled: %s. Their rows were left as they are.",
            count,
            len(ids),
            min(ids),
            max(ids),
            reason,
            event="relay.messages_not_settled",
            count=count,
            reason=reason,
        )


_STORES = {
    "postgresql": "django_outbox.stores.postgresql.PostgreSQLStore",
    "mysql": "django_outbox.stores.mysql.MySQLStore",
    "sqlite": "django_outbox.stores.sqlite.SQLiteStore",
}
_import_store: Callable[[str], type[Store]] = cache(import_string)


def find_store(connection: BaseDatabaseWrapper) -> Store | None:
    """Return the store for a connection; None if the outbox does not support this kind of database."""
    path = _STORES.get(connection.vendor)
    return _import_store(path)(connection) if path else None


def get_store(connection: BaseDatabaseWrapper) -> Store:
    """Return the store for a connection, or raise ImproperlyConfigured for another kind of database."""
    store = find_store(connection)
    if store is None:
        raise ImproperlyConfigured(
            f"The outbox does not support the database {connection.alias!r} (vendor {connection.vendor!r}); "
            f"it supports {', '.join(_STORES)}."
        )
    return store
