"""`RedisStreamsConsumer`: reads a stream as a member of a consumer group.

https://redis.io/docs/latest/commands/xreadgroup/
"""

import hashlib
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_outbox.brokers.consumer import ConnectedConsumer, ConsumerConnection, Incoming, Unavailable, take_batch
from django_outbox.brokers.options import require_choice, require_seconds, require_text
from django_outbox.brokers.redis.connection import RedisConnection, Replies, encode_command
from django_outbox.brokers.redis.encoding import StreamEntry, read_delivery
from django_outbox.brokers.redis.errors import Lost, explain, explain_reply
from django_outbox.brokers.redis.options import RedisOptions
from django_outbox.brokers.redis.servers import make_servers
from django_outbox.logs import logger
from django_outbox.rates import Allowance

MAX_CLAIM_INTERVAL = 30.0
"""Maximum seconds between two searches for entries to take over."""

POLL_INTERVAL = 0.25
"""Maximum seconds between two questions whether other consumers have settled their entries."""

CLAIM_COUNT = 1000
"""Number of entries that are taken over with one command while no new ones are read."""

QUIET_WAIT = 5.0
"""Seconds of waiting for other consumers before it is logged."""

FIRST_COUNT = 10
"""Number of entries in the first read, when nothing is known of their size."""

LOSS_INTERVAL = 60.0
"""Seconds in which lost entries are logged once."""


@dataclass(kw_only=True, eq=False, repr=False)
class RedisStreamsConsumer(RedisOptions, ConnectedConsumer["RedisConsumerConnection"]):
    """Reads a stream as a member of a consumer group, and acknowledges an entry after it was stored.

    Entries stay in the stream when they are acknowledged: trim it with the publisher's `max_length`, or with XTRIM.

    Args:
        alias: the consumer's name in the settings.
        url: `redis://user:password@host:6379/0`, `rediss://` or `unix://`, as for `RedisStreamsPublisher`.
        stream: the stream to read.
        group: the consumer group. Each entry goes to one member of a group.
        create_group: create the group, and the stream, if they do not exist: the group gets the entries that are there
            already (`beginning`), or later ones only (`end`). None: the group must exist.
        consumer: the name of this consumer within the group, which no other running process may have: a process with
            the name of one that was killed gets its entries at once. Blank for a name that no process has had.
        claim_idle: seconds after which entries are taken over from a consumer that has vanished without settling them.
        dead_letters: the stream that rejected entries are added to. Required if other options reject messages.
        sentinels: the Sentinels' URLs, as for `RedisStreamsPublisher`.
        cluster: whether the server belongs to a cluster.
        connect_timeout: seconds for connecting.
        timeout: seconds that Redis has to reply.
        ssl: for `rediss://`, a dict with any of the keys cafile, certfile, keyfile, each the path of a PEM file.
        options: the options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "Redis"

    stream: str
    group: str
    create_group: Literal["beginning", "end"] | None = "beginning"
    consumer: str = ""
    claim_idle: float = 300.0
    dead_letters: str = ""
    timeout: float = 15.0

    def __post_init__(self) -> None:
        ConnectedConsumer.__post_init__(self)
        RedisOptions.__post_init__(self)
        require_text("stream", self.stream, "'order.created'")
        require_text("group", self.group, "'billing'")
        require_choice("create_group", self.create_group, ("beginning", "end", None))
        require_seconds("claim_idle", self.claim_idle)
        consumer: object = self.consumer
        if not isinstance(consumer, str) or consumer == RELEASED:
            raise ImproperlyConfigured(f"consumer is {consumer!r}; it must be a string, and not {RELEASED!r}.")
        dead: object = self.dead_letters
        if not isinstance(dead, str) or dead == self.stream:
            raise ImproperlyConfigured(f"dead_letters is {dead!r}; it must be the name of another stream.")
        self.require_dead_letters(dead, "the name of another stream")
        if self.cluster and dead and key_slot(self.stream.encode()) != key_slot(dead.encode()):
            raise ImproperlyConfigured(
                f"dead_letters is {dead!r}, which may be on another node of the cluster than {self.stream!r}; give "
                "both names the same part in braces, such as {orders}.dead and {orders}."
            )
        self._servers = make_servers(self, f"Consumer {self.alias!r}")
        # The name that it keeps when it reconnects, so that it gets the entries again that it has not settled.
        self._name = ""
        self._pid = 0
        self._begins = True
        # The entry after which it began to read, so that no later one is left out if the group must be created again.
        self._start: bytes | None = None

    @property
    def source(self) -> str:
        return f"stream {self.stream!r} at {self.describe_servers()}, group {self.group!r}"

    def _make_connection(self, max_messages: int | None) -> "RedisConsumerConnection":
        if self._pid != os.getpid():
            self._pid, self._begins = os.getpid(), True
            self._name = self.consumer or make_name()
        try:
            connection = self._servers.connect(self._servers.find(self.stream))
        except Lost as error:
            self._servers.forget()
            raise Unavailable(str(error)) from error
        return RedisConsumerConnection(connection, self, self._name, begins=self._begins, start=self._start)

    def close(self) -> None:
        if self._connection is not None:
            self._start = self._connection.start
            self._begins = self._begins and not self._connection.has_begun
            super().close()
            # The stream may have moved to another node.
            self._servers.forget()


class RedisConsumerConnection(ConsumerConnection):
    """Reads the entries that this consumer has not settled yet, then new ones, and entries that others left.

    A consumer that begins takes over the entries of consumers that are gone, and waits until the others have settled
    the entries that they had by then. Otherwise, later entries would be stored before the entries of a process that was
    killed. Meanwhile it reads only its own entries that come before all of theirs.

    Acknowledgements are sent without waiting; their replies are read before the next command.

    Args:
        begins: whether the consumer has not read new entries yet.
        start: the ID of the entry after which the consumer began to read the end of the stream; None if it has not.
    """

    def __init__(
        self,
        connection: RedisConnection,
        options: RedisStreamsConsumer,
        name: str,
        *,
        begins: bool,
        start: bytes | None,
    ) -> None:
        self._owner = f"Stream {options.stream!r}, group {options.group!r}"
        self._connection = connection
        self._options = options
        self._place = options.stream, options.group
        self._consumer = name
        self._has_group = False
        self.start = start
        self._timeout = options.timeout
        self._last_tag = 0
        self._unsettled: dict[int, StreamEntry] = {}
        self._received: deque[Incoming] = deque()
        self._average_size = options.batch_bytes / FIRST_COUNT
        self._is_paused = False
        # For each reply that is owed, the ID of the entry to acknowledge if it is no error, or None.
        self._owed: list[bytes | None] = []
        self._refusal = ""
        self._own_id: bytes | None = b"0"
        self._claim_cursor = b"0-0"
        self._claim_at = 0.0
        self._waits_since = time.monotonic() if begins else None
        self._is_wait_logged = False
        # While this entry or an earlier one is in the stream, no unread entry was trimmed.
        self._last_id: bytes | None = None
        # Entries that were trimmed or deleted before they were stored, and are not logged yet.
        self._lost = 0
        self._loss_logs = Allowance(1, LOSS_INTERVAL)
        # The trimmed entries that were counted, but that Redis still counts as unread.
        self._reported = 0
        # The last entry that others may have received before this consumer began.
        self._last_of_others: bytes | None = None

    def open(self) -> None:
        options = self._options
        try:
            for option, name in (("stream", options.stream), ("dead_letters", options.dead_letters)):
                if name and self._command("TYPE", name) not in (b"none", b"stream"):
                    raise Unavailable(f"{option} {name!r} is the key of a value that is not a stream; correct it")
            if options.create_group is None:
                self._command("XPENDING", *self._place)
        except Unavailable:
            self._connection.close()
            raise

    def _find_or_create_group(self) -> None:
        if self._options.create_group is not None:
            self._create_group()
        if self._options.create_group == "end" and self.start is None:
            self.start = self._read_group()[b"last-delivered-id"]
        self._has_group = True

    def _create_group(self) -> None:
        try:
            self._command("XGROUP", "CREATE", *self._place, self._choose_start(), "MKSTREAM")
        except Unavailable as error:
            if "BUSYGROUP" in str(error):
                return
            if isinstance(error.__cause__, redis.OutOfMemoryError):
                # Redis refuses the command although the group may exist; it can be read without memory.
                with suppress(Unavailable):
                    self._command("XPENDING", *self._place)
                    return
            raise

    def _choose_start(self) -> str | bytes:
        """Return the ID of the entry after which the group begins if it does not exist."""
        if self._options.create_group == "beginning":
            return "0"
        if self.start is None:
            return "$"
        last = self._command("XREVRANGE", self._options.stream, "+", "-", "COUNT", 1)
        # If the stream was deleted and created again, its IDs may be lower.
        return self.start if last and _number(last[0][0]) >= _number(self.start) else "0"

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._has_group:
            self._find_or_create_group()
        if not self._received:
            if self._is_paused:
                time.sleep(seconds)
            else:
                # The entries should not exceed the bytes of a batch by much.
                count = max(1, min(max_messages, int(max_bytes / max(self._average_size, 1))))
                self._keep(self._read(count, seconds))
        return take_batch(self._received, max_messages, max_bytes, lambda message: len(message.body))[0]

    def _keep(self, entries: Sequence[StreamEntry]) -> None:
        """Keep entries until they are settled. An entry that is kept already was taken over from this very consumer."""
        known = {entry.id for entry in self._unsettled.values()}
        gone = []
        for entry in entries:
            if entry.id in known:
                continue
            if not entry.fields:
                gone.append(entry.id)
                continue
            self._last_tag += 1
            self._unsettled[self._last_tag] = entry
            self._received.append(read_delivery(entry, self._last_tag, self._options.stream))
            self._average_size = 0.9 * self._average_size + 0.1 * entry.size
        if gone:
            # They were trimmed or deleted while they were pending.
            self._add_losses(len(gone))
            self._settle(gone, [])

    def _read(self, count: int, seconds: float) -> list[StreamEntry]:
        """Return the next entries, which are this consumer's from now on; none if there is none within that time.

        Every method that reads raises `Unavailable` if the connection has ended, or if Redis refuses.
        """
        if self._waits_since is not None:
            if busy := self._list_busy(self._waits_since):
                entries = self._read_own_before(busy, count)
                if not entries:
                    time.sleep(min(seconds, POLL_INTERVAL))
                return entries
            self._waits_since = None
        if self._own_id is not None:
            entries = self._read_own(self._own_id, count)
            self._own_id = entries[-1].id if entries else None
            if entries:
                return entries
        return self._claim(count) or self._read_new(count) or self._await_new(count, seconds)

    def _read_own(self, start: bytes, count: int) -> list[StreamEntry]:
        return _read_streams(self._command(*self._reading(count), "STREAMS", self._options.stream, start))

    def _read_own_before(self, others: Sequence[str], count: int) -> list[StreamEntry]:
        """Return this consumer's entries that come before all entries of the others.

        Otherwise, consumers that begin with entries of an earlier process would wait for each other.
        """
        pages = [self._command("XPENDING", *self._place, "-", "+", 1, name) for name in others]
        firsts = [page[0][0] for page in pages if page]
        if not firsts:
            return []
        end = b"(" + min(firsts, key=_number)
        own = self._command("XPENDING", *self._place, "-", end, count, self._consumer)
        return self._read_own(b"0", len(own)) if own else []

    @property
    def has_begun(self) -> bool:
        return self._waits_since is None

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        entries = {message.tag: self._unsettled.pop(message.tag) for message in batch if message.tag in self._unsettled}
        accepted = [entry.id for tag, entry in entries.items() if tag not in rejected]
        self._settle(accepted, [entry for tag, entry in entries.items() if tag in rejected])

    def _settle(self, accepted: Sequence[bytes], rejected: Sequence[StreamEntry]) -> None:
        """Acknowledge entries, and add rejected ones to the dead letters.

        A rejected entry is acknowledged after Redis has confirmed that it is among the dead letters.
        """
        options = self._options
        commands: list[bytes] = []
        if not options.dead_letters:
            accepted = [*accepted, *(entry.id for entry in rejected)]
        else:
            for entry in rejected:
                commands.append(encode_command("XADD", options.dead_letters, "*", *entry.fields))
                self._owed.append(entry.id)
        if accepted:
            commands.append(encode_command("XACK", *self._place, *accepted))
            self._owed.append(None)
        # A connection that has ended is noticed by the next command.
        with suppress(Lost):
            self._connection.send(b"".join(commands), time.monotonic() + self._timeout)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def is_drained(self) -> bool:
        if self._received:
            return False
        last = self._command("XREVRANGE", self._options.stream, "+", "-", "COUNT", 1)
        if last and _number(last[0][0]) > _number(self._read_group()[b"last-delivered-id"]):
            return False
        # Entries that other consumers have received can be taken over if they are not settled.
        return not self._pending()

    def close(self) -> None:
        """Give entries back, so that another consumer can take them over at once, and leave the group."""
        is_known = bool(self._refusal)
        own = [entry.id for entry in self._unsettled.values()]
        with suppress(Unavailable):
            if not self._options.consumer:
                self._move(self._consumer, RELEASED, "IDLE", self._claim_ms)
                # Deleting a consumer would delete its pending entries, too.
                if not self._pending(self._consumer):
                    self._command("XGROUP", "DELCONSUMER", *self._place, self._consumer)
            elif own:
                # A successor with the same name may have others already.
                self._command("XCLAIM", *self._place, RELEASED, 0, *own, "IDLE", self._claim_ms, "JUSTID")
        self._log_losses()
        if self._refusal and not is_known:
            logger.error(
                "%(subject)s: messages could not be settled and will come again: %(reason)s",
                event="consumer.acknowledgements_lost",
                subject=self._owner,
                reason=self._refusal,
            )
        self._connection.close()

    @property
    def _claim_ms(self) -> int:
        return max(int(self._options.claim_idle * 1000), 1)

    def _claim(self, count: int) -> list[StreamEntry]:
        if time.monotonic() < self._claim_at:
            return []
        entries = _read_entries(self._autoclaim(self._claim_cursor, count))
        if self._claim_cursor == b"0-0":
            self._claim_at = time.monotonic() + min(self._options.claim_idle / 2, MAX_CLAIM_INTERVAL)
        return entries

    def _autoclaim(self, cursor: bytes, count: int, *arguments: str) -> list[Any]:
        """Take over entries that are old enough, and return them; set the cursor, which is "0-0" after the last one."""
        command = "XAUTOCLAIM", *self._place, self._consumer, self._claim_ms, cursor, "COUNT", count
        self._claim_cursor, found, *deleted = self._command(*command, *arguments)
        self._add_losses(sum(map(len, deleted)))
        entries = [each for each in found if each]
        if len(entries) < len(found):
            # Redis 6.2 does not list deleted entries but gives them to this consumer, which has to acknowledge them.
            self._own_id = b"0"
        return entries

    def _list_busy(self, since: float) -> list[str]:
        """Take over what others have left, and list the others with entries that this consumer must wait for."""
        *_, consumers = self._command("XPENDING", *self._place)
        names = [name.decode("utf-8", "replace") for name, _ in consumers or ()]
        others = [name for name in names if name != self._consumer]
        if self._last_of_others is None:
            self._last_of_others = self._read_group()[b"last-delivered-id"]
        for name in filter(is_gone, others):
            self._take_over(name)
        found = self._autoclaim(b"0-0", CLAIM_COUNT, "JUSTID")
        self._claim_cursor = b"0-0"
        if not found and time.monotonic() - since > self._options.claim_idle + POLL_INTERVAL:
            # What others still have, they received again since then, such as a consumer that cannot settle it.
            return []
        busy = [name for name in others if not is_gone(name) and self._pending(name, self._last_of_others)]
        if busy and not self._is_wait_logged and time.monotonic() - since > QUIET_WAIT:
            self._is_wait_logged = True
            logger.warning(
                "%(subject)s: waits until %(consumers)s have settled their entries, or for claim_idle (%(seconds)g s), "
                "to keep the order; set the option consumer to avoid that after a crash",
                event="consumer.waiting",
                consumers=", ".join(map(repr, busy[:3])),
                subject=self._owner,
                seconds=self._options.claim_idle,
            )
        return busy

    def _take_over(self, name: str) -> None:
        count = self._move(name, self._consumer)
        if name != RELEASED:
            self._command("XGROUP", "DELCONSUMER", *self._place, name)
            logger.info(
                "%s: took over %s entries of the ended process %r",
                self._owner,
                f"{count:,}",
                name,
                event="consumer.took_over",
                subject=self._owner,
                count=count,
            )

    def _move(self, name: str, target: str, *arguments: str | int) -> int:
        """Give all entries of a consumer to another one, and return their number."""
        start, count = b"-", 0
        while page := self._command("XPENDING", *self._place, start, "+", CLAIM_COUNT, name):
            ids = [each[0] for each in page]
            # Another consumer that has taken over an entry in this moment keeps it, because it is no longer idle.
            idle = min(each[2] for each in page)
            claimed = self._command("XCLAIM", *self._place, target, idle, *ids, *arguments, "JUSTID")
            count += len(claimed)
            if missing := set(ids).difference(claimed):
                left = self._command("XPENDING", *self._place, ids[0], ids[-1], len(ids))
                self._add_losses(len(missing.difference(each[0] for each in left)))
            start = b"(" + ids[-1]
        return count

    def _read_new(self, count: int) -> list[StreamEntry]:
        """Return new entries if there are any, and count entries that were trimmed before the group has read them."""
        options = self._options
        if self._last_id is None:
            self._last_id = self._read_group()[b"last-delivered-id"]
        groups, earlier, reply = self._commands(
            ("XINFO", "GROUPS", options.stream),
            ("XREVRANGE", options.stream, self._last_id, "-", "COUNT", 1),
            (*self._reading(count), "STREAMS", options.stream, ">"),
        )
        entries = self._note_last(_read_streams(reply))
        info = self._find_group(groups)
        if not entries:
            # Redis 7.0 does not count trimmed entries as read when it has passed them: they stay unread.
            self._reported = info.get(b"lag") or 0
        elif not earlier and info.get(b"entries-read") is not None:
            self._count_trimmed(entries, info[b"entries-read"])
        return entries

    def _count_trimmed(self, entries: Sequence[StreamEntry], read: int) -> None:
        """Count entries that were trimmed unread, given new entries, and how many the group had read before them."""
        name = self._options.stream
        reply, groups = self._commands(("XINFO", "STREAM", name), ("XINFO", "GROUPS", name))
        stream = dict(zip(reply[::2], reply[1::2], strict=True))
        first = stream[b"first-entry"]
        trimmed_since = sum(not first or _number(each.id) < _number(first[0]) for each in entries)
        before = stream[b"entries-added"] - stream[b"length"] - trimmed_since
        self._add_losses(before - read - self._reported)
        self._reported = before + len(entries) - (self._find_group(groups).get(b"entries-read") or 0)

    def _add_losses(self, count: int) -> None:
        """Count entries that were trimmed or deleted before they were stored; the first ones are logged at once."""
        self._lost += max(count, 0)
        if self._lost and self._loss_logs.take():
            self._log_losses()

    def _log_losses(self) -> None:
        if self._lost:
            logger.error(
                "%(subject)s: %(count)s entries were trimmed or deleted before they were stored, and are lost: trim "
                "the stream less (max_length of the publisher, MAXLEN or MINID of XTRIM), or read it faster",
                event="consumer.messages_lost",
                subject=self._owner,
                count=self._lost,
            )
            self._lost = 0

    def _await_new(self, count: int, seconds: float) -> list[StreamEntry]:
        block = max(int(min(seconds, self._timeout / 2) * 1000), 1)
        reply = self._command(*self._reading(count), "BLOCK", block, "STREAMS", self._options.stream, ">")
        return self._note_last(_read_streams(reply))

    def _note_last(self, entries: list[StreamEntry]) -> list[StreamEntry]:
        if entries:
            self._last_id = entries[-1].id
        return entries

    def _read_group(self) -> dict[bytes, Any]:
        return self._find_group(self._command("XINFO", "GROUPS", self._options.stream))

    def _find_group(self, groups: Any) -> dict[bytes, Any]:
        found = (dict(zip(each[::2], each[1::2], strict=True)) for each in groups)
        name = self._options.group.encode()
        return next((each for each in found if each[b"name"] == name), {b"last-delivered-id": b"0-0"})

    def _pending(self, consumer: str = "", last: bytes = b"+") -> bool:
        """Return whether a consumer has entries to settle; without a name, whether any consumer has."""
        named = [consumer] if consumer else []
        return bool(self._command("XPENDING", *self._place, "-", last, 1, *named))

    def _reading(self, count: int) -> tuple[str | int, ...]:
        return "XREADGROUP", "GROUP", self._options.group, self._consumer, "COUNT", count

    def _command(self, *arguments: str | int | bytes) -> Any:
        (reply,) = self._commands(arguments)
        return reply

    def _commands(self, *commands: Sequence[str | int | bytes]) -> list[Any]:
        self._read_owed()
        try:
            return self._connection.execute_all(commands)
        except (redis.RedisError, OSError, Lost) as error:
            raise Unavailable(explain(error)) from error

    def _read_owed(self) -> None:
        """Read the replies to acknowledgements, and acknowledge what is among the dead letters now."""
        while self._owed:
            owed, self._owed = self._owed, []
            replies = Replies()
            try:
                self._connection.receive(replies, len(owed), time.monotonic() + self._timeout)
            except Lost as error:
                # A reply that came late would be taken for the reply to the next command.
                self._connection.close()
                raise Unavailable(str(error)) from error
            dead = [id for position, id in enumerate(owed) if id is not None and position not in replies.errors]
            self._settle(dead, [])
            if replies.errors:
                # The entries are still this consumer's, which reads them again when it has reconnected.
                self._refusal = explain_reply(next(iter(replies.errors.values())))
        if self._refusal:
            raise Unavailable(f"messages cannot be settled: {self._refusal}")


def _read_streams(reply: Any) -> list[StreamEntry]:
    return _read_entries(reply[0][1]) if reply else []


def _read_entries(entries: Any) -> list[StreamEntry]:
    """Return entries. One that was deleted or trimmed while it was pending has no fields any more."""
    return [StreamEntry(id, fields or []) for id, fields in (each for each in entries if each)]


def _number(id: bytes) -> tuple[int, ...]:
    return tuple(map(int, id.split(b"-")))


RELEASED = "outbox-released"
"""The consumer that gets entries that a consumer gives back; they can be taken over at once."""


def make_name() -> str:
    """Return a name that no other consumer has: the host, where the process ID is valid, the process, and random."""
    pid = os.getpid()
    return f"{socket.gethostname()}-{_namespace()}-{pid}-{_started(pid)}-{uuid.uuid4().hex[:8]}"


def is_gone(name: str) -> bool:
    """Return whether a consumer can never return, because its process has ended. False if that is unknown."""
    if name == RELEASED:
        return True
    host, namespace, pid, started, *_ = [*name.rsplit("-", 4), "", "", "", ""]
    if not namespace or (host, namespace) != (socket.gethostname(), _namespace()) or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    found = _started(int(pid))
    # Another process may have the same number now.
    return bool(found) and found != started


@cache
def _namespace() -> str:
    """Return an identifier of the running system and its container, where a process ID is valid; blank if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256((boot + str(Path("/proc/self/ns/pid").readlink())).encode()).hexdigest()[:8]
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, "ended" if it only waits to be reaped, or a blank if that is unknown."""
    with suppress(OSError, IndexError):
        # The name of the program, in parentheses, may have any characters.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if state in "ZX" else fields[18]
    return ""
