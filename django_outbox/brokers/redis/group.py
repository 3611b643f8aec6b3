"""One connection that reads a stream as a member of a consumer group: https://redis.io/docs/latest/commands/xreadgroup/."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from django_outbox.brokers.consumer import Unavailable
from django_outbox.brokers.redis.connection import RedisConnection, Replies, encode_command
from django_outbox.brokers.redis.entries import StreamEntry
from django_outbox.brokers.redis.errors import Lost, explain, explain_reply
from django_outbox.brokers.redis.names import RELEASED, is_gone
from django_outbox.brokers.redis.options import StreamOptions
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


class ConsumerGroup:
    """Reads the entries that this consumer has not settled yet, then new ones, and entries that others left.

    A consumer that begins takes over the entries of consumers that are gone, and waits until the others have settled
    the entries that they had by then. Otherwise, later entries would be stored before the entries of a process that was
    killed.

    Acknowledgements are sent without waiting; their replies are read before the next command.

    Args:
        consumer: the name of this consumer within the group, which no other process uses.
        timeout: seconds that Redis has to reply.
        begins: whether the consumer has not read new entries yet.
    """

    def __init__(
        self, connection: RedisConnection, options: StreamOptions, consumer: str, timeout: float, *, begins: bool
    ) -> None:
        self._owner = f"Stream {options.name!r}, group {options.group!r}"
        self._connection = connection
        self._options = options
        self._place = options.name, options.group
        self._consumer = consumer
        self._timeout = timeout
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
        if options.create_group is not None:
            start = "0" if options.create_group == "beginning" else "$"
            try:
                self._command("XGROUP", "CREATE", *self._place, start, "MKSTREAM")
            except Unavailable as error:
                if "BUSYGROUP" not in str(error):
                    raise
        dead = options.dead_letters
        if dead and self._command("TYPE", dead) not in (b"none", b"stream"):
            raise Unavailable(f"dead_letters {dead!r} is the key of a value that is not a stream; correct it")

    def read(self, count: int, seconds: float) -> list[StreamEntry]:
        """Return the next entries, which are this consumer's from now on; none if there is none within that time.

        Every method that reads raises `Unavailable` if the connection has ended, or if Redis refuses.
        """
        if self._waits_since is not None:
            if self._others_are_busy(self._waits_since):
                time.sleep(min(seconds, POLL_INTERVAL))
                return []
            self._waits_since = None
        if self._own_id is not None:
            reply = self._command(*self._reading(count), "STREAMS", self._options.name, self._own_id)
            entries = _read_streams(reply)
            self._own_id = entries[-1].id if entries else None
            if entries:
                return entries
        return self._claim(count) or self._read_new(count) or self._await_new(count, seconds)

    @property
    def has_begun(self) -> bool:
        """Whether new entries are read."""
        return self._waits_since is None

    def settle(self, accepted: Sequence[bytes], rejected: Sequence[StreamEntry]) -> None:
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

    def lose(self, ids: Sequence[bytes]) -> None:
        """Count and acknowledge entries that were trimmed or deleted while they were pending."""
        self._add_losses(len(ids))
        self.settle(ids, [])

    def has_more(self) -> bool:
        """Return whether there are entries that could be read now."""
        last = self._command("XREVRANGE", self._options.name, "+", "-", "COUNT", 1)
        if last and _number(last[0][0]) > _number(self._read_group()[b"last-delivered-id"]):
            return True
        if self._own_id is not None and self._pending("0", self._consumer):
            return True
        return self._pending(str(self._claim_ms), "")

    def leave(self, unsettled: Sequence[bytes]) -> None:
        """Give entries back, so that another consumer can take them over at once, and leave the group."""
        is_known = bool(self._refusal)
        self._log_losses()
        with suppress(Unavailable):
            self._read_owed()
            if unsettled:
                self._command("XCLAIM", *self._place, RELEASED, 0, *unsettled, "IDLE", self._claim_ms, "JUSTID")
            # Deleting a consumer would delete its pending entries, too.
            if not self._pending("0", self._consumer):
                self._command("XGROUP", "DELCONSUMER", *self._place, self._consumer)
        if self._refusal and not is_known:
            logger.error(
                "%s: messages could not be settled and will come again: %s",
                self._owner,
                self._refusal,
                event="consumer.acknowledgements_lost",
                subject=self._owner,
                reason=self._refusal,
            )
        self._connection.close()

    @property
    def _claim_ms(self) -> int:
        return max(int(self._options.claim_idle * 1000), 1)

    def _claim(self, count: int) -> list[StreamEntry]:
        """Take over entries of consumers that have vanished."""
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
        # Redis 6.2 does not list deleted entries.
        entries = [each for each in found if each]
        self._add_losses(len(found) - len(entries) + sum(map(len, deleted)))
        return entries

    def _others_are_busy(self, since: float) -> bool:
        """Take over what others have left, and return whether they have entries that this consumer must wait for."""
        others = [name for name in self._pending_consumers() if name != self._consumer]
        if self._last_of_others is None:
            self._last_of_others = self._read_group()[b"last-delivered-id"]
        for name in filter(is_gone, others):
            self._take_over(name)
        self._autoclaim(b"0-0", CLAIM_COUNT, "JUSTID")
        self._claim_cursor = b"0-0"
        busy = [name for name in others if not is_gone(name) and self._pending("0", name, self._last_of_others)]
        if busy and not self._is_wait_logged and time.monotonic() - since > QUIET_WAIT:
            self._is_wait_logged = True
            logger.warning(
                "%s: waits until %s have settled their entries, or for claim_idle (%g s), to keep the order; set the "
                "option consumer to avoid that after a crash",
                self._owner,
                ", ".join(map(repr, busy[:3])),
                self._options.claim_idle,
                event="consumer.waiting",
                subject=self._owner,
                seconds=self._options.claim_idle,
            )
        return bool(busy)

    def _take_over(self, name: str) -> None:
        """Take over all entries of a consumer that is gone."""
        start, count = b"-", 0
        while page := self._command("XPENDING", *self._place, start, "+", CLAIM_COUNT, name):
            ids = [each[0] for each in page]
            # Another consumer that has taken over an entry in this moment keeps it, because it is no longer idle.
            idle = min(each[2] for each in page)
            claimed = self._command("XCLAIM", *self._place, self._consumer, idle, *ids, "JUSTID")
            count += len(claimed)
            if missing := set(ids).difference(claimed):
                left = self._command("XPENDING", *self._place, ids[0], ids[-1], len(ids))
                self._add_losses(len(missing.difference(each[0] for each in left)))
            start = b"(" + ids[-1]
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

    def _pending_consumers(self) -> list[str]:
        """Return the names of the consumers that have entries."""
        *_, consumers = self._command("XPENDING", *self._place)
        return [name.decode("utf-8", "replace") for name, _ in consumers or ()]

    def _read_new(self, count: int) -> list[StreamEntry]:
        """Return new entries if there are any, and count entries that were trimmed before the group has read them."""
        options = self._options
        if self._last_id is None:
            self._last_id = self._read_group()[b"last-delivered-id"]
        groups, earlier, reply = self._commands(
            ("XINFO", "GROUPS", options.name),
            ("XREVRANGE", options.name, self._last_id, "-", "COUNT", 1),
            (*self._reading(count), "STREAMS", options.name, ">"),
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
        name = self._options.name
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
                "%s: %s entries were trimmed or deleted before they were stored, and are lost: trim the stream less "
                "(max_length of the publisher, MAXLEN or MINID of XTRIM), or read it faster",
                self._owner,
                f"{self._lost:,}",
                event="consumer.messages_lost",
                subject=self._owner,
                count=self._lost,
            )
            self._lost = 0

    def _await_new(self, count: int, seconds: float) -> list[StreamEntry]:
        """Return new entries as soon as there are any."""
        block = max(int(min(seconds, self._timeout / 2) * 1000), 1)
        reply = self._command(*self._reading(count), "BLOCK", block, "STREAMS", self._options.name, ">")
        return self._note_last(_read_streams(reply))

    def _note_last(self, entries: list[StreamEntry]) -> list[StreamEntry]:
        if entries:
            self._last_id = entries[-1].id
        return entries

    def _read_group(self) -> dict[bytes, Any]:
        """Return Redis's information about this group."""
        return self._find_group(self._command("XINFO", "GROUPS", self._options.name))

    def _find_group(self, groups: Any) -> dict[bytes, Any]:
        """Return the part of a reply to XINFO GROUPS about this group."""
        found = (dict(zip(each[::2], each[1::2], strict=True)) for each in groups)
        name = self._options.group.encode()
        return next((each for each in found if each[b"name"] == name), {b"last-delivered-id": b"0-0"})

    def _pending(self, idle: str, consumer: str, last: bytes = b"+") -> bool:
        named = [consumer] if consumer else []
        return bool(self._command("XPENDING", *self._place, "IDLE", idle, "-", last, 1, *named))

    def _reading(self, count: int) -> tuple[str | int, ...]:
        return "XREADGROUP", "GROUP", self._options.group, self._consumer, "COUNT", count

    def _command(self, *arguments: str | int | bytes) -> Any:
        (reply,) = self._commands(arguments)
        return reply

    def _commands(self, *commands: Sequence[str | int | bytes]) -> list[Any]:
        """Execute commands in one round trip."""
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
                raise Unavailable(str(error)) from error
            dead = [id for position, id in enumerate(owed) if id is not None and position not in replies.errors]
            self.settle(dead, [])
            if replies.errors:
                # The entries are still this consumer's, which reads them again when it has reconnected.
                self._refusal = explain_reply(next(iter(replies.errors.values())))
        if self._refusal:
            raise Unavailable(f"messages cannot be settled: {self._refusal}")


def _read_streams(reply: Any) -> list[StreamEntry]:
    """Return the entries of a reply to XREADGROUP for one stream."""
    return _read_entries(reply[0][1]) if reply else []


def _read_entries(entries: Any) -> list[StreamEntry]:
    """Return entries. One that was deleted or trimmed while it was pending has no fields any more."""
    return [StreamEntry(id, fields or []) for id, fields in (each for each in entries if each)]


def _number(id: bytes) -> tuple[int, ...]:
    return tuple(map(int, id.split(b"-")))
