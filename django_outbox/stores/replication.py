"""PostgreSQL's protocol for logical replication, spoken with psycopg's low-level functions.

See https://www.postgresql.org/docs/current/protocol-replication.html and protocol-logicalrep-message-formats.html. It
needs psycopg 3, whatever driver Django uses.
"""

import datetime
import selectors
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from django_outbox.messages import Message
from django_outbox.stores.rows import read_headers
from django_outbox.stores.wal import COLUMNS, PUBLICATION
from django_outbox.utils.text import one_line

EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
"""The beginning of PostgreSQL's times."""

OPTIONS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0"
"""Settings of the session: it is idle while nothing is committed."""

STATUS_INTERVAL = 1.0
"""Seconds between two reports to the server, which keeps its log up to the place that was reported."""

READ_AT_ONCE = 1000
"""Maximum number of protocol messages that are read before the transactions in them are returned."""

OVERHEAD = 500
"""Bytes of memory that a message takes in addition to its row."""

HEADER = 25
"""The bytes before the content of a protocol message: its kind, two places in the log, and a time."""

IN_USE = {"42710", "55006"}
"""The errors if another connection has a slot of this name: duplicate_object, object_in_use."""

_read_size = struct.Struct(">I").unpack_from

_INSERT, _BEGIN, _COMMIT, _RELATION = b"IBCR"
_KEEPALIVE = b"k"[0]
_NULL, _BINARY = b"nb"


class SlotInUse(Exception):
    """Another connection has the slot."""


class LogUnavailable(Exception):
    """The log cannot be read; the text has the reason."""


class Transaction(NamedTuple):
    """A committed transaction.

    Attributes:
        lsn: the place of its commit in the log.
        messages: the streamed messages of the publisher that it inserted.
        size: the bytes of memory that they take.
    """

    xid: int
    lsn: int
    messages: Sequence[Message]
    size: int


class LogReader:
    """A connection that reads the log through a temporary slot, which the server drops when the connection ends.

    Attributes:
        received: every transaction that was committed before this place in the log has been returned.
        size: the bytes of the messages of the transaction that is being read.
    """

    def __init__(self, parameters: Mapping[str, Any], publisher: str, *, is_stopping: Callable[[], bool]) -> None:
        self.received = self.size = 0
        self._publisher = publisher.encode()
        self._is_stopping = is_stopping
        self._table = 0
        self._pick: Callable[[Sequence[bytes]], Sequence[bytes]] = tuple
        self._xid = self._short_xid = 0
        self._messages: list[Message] = []
        self._reported_at = 0.0
        known = {info.keyword.decode() for info in pq.Conninfo.get_defaults()}
        options = {name: value for name, value in parameters.items() if name in known and value is not None}
        options |= {
            "replication": "database",
            "client_encoding": "UTF8",
            "options": f"{options.get('options', '')} {OPTIONS}",
            "fallback_application_name": "django_outbox",
        }
        with _explained():
            self._connection = psycopg.connect(make_conninfo(**options), autocommit=True)
        self._pgconn = self._connection.pgconn
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        self._connection.close()

    def identify(self) -> tuple[str, int]:
        """Return the identifier and the timeline of the server."""
        result = self._run("IDENTIFY_SYSTEM")
        return (result.get_value(0, 0) or b"").decode(), int(result.get_value(0, 1) or 0)

    def start(self, slot: str, table: int) -> None:
        """Create the slot, and read from there on. This waits until all transactions that are open now have ended."""
        self._table = table
        if self._connection.info.server_version >= 170_000:
            # It would end the connection while a large transaction is read. Older versions do not know it.
            self._run("SELECT set_config('transaction_timeout', '0', false)")
        self._run(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
        options = f"proto_version '1', publication_names '{PUBLICATION}', binary 'true'"
        self._run(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})")

    def read(self, seconds: float, max_bytes: int) -> list[Transaction]:
        """Return transactions in the order of their commits; none if none is committed for that many seconds."""
        committed = self._read_received(max_bytes)
        if not committed:
            self._wait(seconds)
            committed = self._read_received(max_bytes)
        if time.monotonic() - self._reported_at > STATUS_INTERVAL:
            self._report()
        return committed

    def _read_received(self, max_bytes: int) -> list[Transaction]:
        committed: list[Transaction] = []
        size = 0
        with _explained():
            for _ in range(READ_AT_ONCE):
                length, data = self._pgconn.get_copy_data(1)
                if length < 0:
                    result = self._pgconn.get_result()
                    raise LogUnavailable("the server has ended it") if result is None else _refusal(result)
                size += length
                if not length:
                    break
                self._take(bytes(data), committed)
                if size > max_bytes:
                    break
        return committed

    def _take(self, data: bytes, committed: list[Transaction]) -> None:
        if data[0] == _KEEPALIVE:
            self.received = max(self.received, int.from_bytes(data[1:9], "big"))
            if data[17]:
                self._report()
            return
        kind = data[HEADER]
        if kind == _INSERT:
            if int.from_bytes(data[HEADER + 1 : HEADER + 5], "big") == self._table:
                self._insert(data)
        elif kind == _BEGIN:
            self._short_xid = int.from_bytes(data[HEADER + 17 : HEADER + 21], "big")
            self._messages, self.size = [], 0
        elif kind == _COMMIT:
            lsn, end = struct.unpack_from(">QQ", data, HEADER + 2)
            if self._messages:
                committed.append(Transaction(self._xid, lsn, self._messages, self.size))
            self._messages, self.size = [], 0
            self.received = max(self.received, end)
        elif kind == _RELATION and int.from_bytes(data[HEADER + 1 : HEADER + 5], "big") == self._table:
            self._pick = itemgetter(*_find_columns(data))

    def _insert(self, data: bytes) -> None:
        at, values = HEADER + 8, []
        for _ in range(int.from_bytes(data[at - 2 : at], "big")):
            kind = data[at]
            if kind == _BINARY:
                end = at + 5 + _read_size(data, at + 1)[0]
                values.append(data[at + 5 : end])
                at = end
            elif kind == _NULL:
                values.append(b"")
                at += 1
            else:
                raise LogUnavailable("a row has a value in a format that was not requested")
        xid, publisher, *row = self._pick(values)
        # A message that is pending from the start has no xid.
        if not xid or publisher != self._publisher:
            return
        self._xid = int.from_bytes(xid, "big")
        if self._xid & 0xFFFFFFFF != self._short_xid:
            raise LogUnavailable("a row has the number of another transaction, as after a restore")
        try:
            self._messages.append(_read_message(row))
        except (ValueError, TypeError, OverflowError) as error:
            # The listing reports what is wrong with it.
            raise LogUnavailable(f"a row cannot be read: {one_line(error)}") from None
        self.size += len(data) + OVERHEAD

    def _report(self) -> None:
        """Report that nothing before `received` is needed: the position of the stream has the rest."""
        now = int((datetime.datetime.now(datetime.timezone.utc) - EPOCH).total_seconds() * 1e6)
        place = self.received
        self._reported_at = time.monotonic()
        with _explained():
            self._pgconn.put_copy_data(struct.pack(">cQQQQB", b"r", place, place, place, now, 0))
            self._pgconn.flush()

    def _run(self, command: str) -> Any:
        """Run a command of the protocol, and return its result."""
        with _explained():
            self._pgconn.send_query(command.encode())
            while self._pgconn.is_busy():
                if self._is_stopping():
                    # Otherwise it waits on, and keeps the slot.
                    with suppress(psycopg.Error):
                        self._connection.cancel()
                    raise LogUnavailable("the relay is stopping")
                self._wait(0.2)
            result = self._pgconn.get_result()
        assert result is not None
        if result.status == pq.ExecStatus.COPY_BOTH:
            return result
        while self._pgconn.get_result() is not None:
            pass
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise _refusal(result)
        return result

    def _wait(self, seconds: float) -> None:
        if self._selector.select(seconds):
            with _explained():
                self._pgconn.consume_input()


def _find_columns(data: bytes) -> list[int]:
    """Return the places in the rows of a relation of each of `COLUMNS`."""
    at = data.index(b"\0", HEADER + 5) + 1
    at = data.index(b"\0", at) + 2
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    names = []
    for _ in range(count):
        end = data.index(b"\0", at + 1)
        names.append(data[at + 1 : end].decode())
        at = end + 9
    if missing := {*COLUMNS} - {*names}:
        raise LogUnavailable(f"its publication lacks {', '.join(sorted(missing))}")
    return [names.index(column) for column in COLUMNS]


def _read_message(row: Sequence[bytes]) -> Message:
    id, message_id, type, topic, key, payload, headers, occurred_at = row
    digits = message_id.hex()
    return Message(
        int.from_bytes(id, "big", signed=True),
        f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
        type.decode(),
        topic.decode(),
        key.decode(),
        # The first byte of jsonb is its version.
        payload[1:],
        read_headers(headers[1:].decode()),
        EPOCH + datetime.timedelta(0, 0, int.from_bytes(occurred_at, "big", signed=True)),
        0,
    )


def _refusal(result: Any) -> Exception:
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b""
    reason = one_line(text.decode(errors="replace"))
    return SlotInUse(reason) if code in IN_USE else LogUnavailable(reason)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise an error of the driver as LogUnavailable."""
    try:
        yield
    except psycopg.Error as error:
        raise LogUnavailable(one_line(" ".join(str(error).split()))) from error
