"""One connection that reads a stream as a member of a consumer group: https://redis.io/docs/latest/commands/xreadgroup/."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis

from django_outbox.inbox.base import Unavailable
from django_outbox.inbox.redis.decoding import Entry
from django_outbox.inbox.redis.options import StreamOptions
from django_outbox.logs import logger
from django_outbox.publishers.redis.encoding import encode_bytes
from django_outbox.publishers.redis.errors import OUTAGES, code_of, explain
from django_outbox.publishers.redis.link import Link, Lost
from django_outbox.publishers.redis.replies import Replies

RELEASED = "outbox-released"
"""The consumer that gets entries that a consumer gives back; they can be taken over at once."""

MAX_CLAIM_INTERVAL = 30.0
"""Maximum seconds between two searches for entries to take over."""

FIRST_COUNT = 10
"""Number of entries in the first read, when nothing is known of their size."""

REMEDIES = {
    "NOGROUP": "the stream or its group does not exist: create the group, or set create_group",
    "WRONGTYPE": "the key holds a value that is not a stream: correct the option stream",
    "NOPERM": "give the user of the url permission for the stream and its commands",
}


class Group:
    """Reads the entries that this consumer has not settled yet, then those that others left, and then new ones.

    Acknowledgements are sent without waiting; their replies are read before the next command.

    Args:
        link: the connection.
        options: what to read.
        consumer: the name of this consumer within the group, which no other process uses.
        timeout: seconds that Redis has to reply.

    Raises:
        Unavailable: the stream or the group cannot be read.
    """

    def __init__(self, link: Link, options: StreamOptions, consumer: str, timeout: float) -> None:
        self._link = link
        self._options = options
        self._consumer = consumer
        self._timeout = timeout
        # For each reply that is owed, the ID of the entry to acknowledge if it is no error, or None.
        self._owed: list[bytes | None] = []
        self._refusal = ""
        self._own_id: bytes | None = b"0"
        self._claim_cursor = b"0-0"
        self._claim_at = 0.0
        if options.create_group is not None:
            start = "0" if options.create_group == "beginning" else "$"
            try:
                self._execute("XGROUP", "CREATE", options.name, options.group, start, "MKSTREAM")
            except redis.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise Unavailable(_explain_reply(str(error))) from error
        dead = options.dead_letters
        if dead and self._command("TYPE", dead) not in (b"none", b"stream"):
            raise Unavailable(f"dead_letters {dead!r} is the key of a value that is not a stream; correct it")

    def read(self, count: int, seconds: float) -> list[Entry]:
        """Return the next entries, which are this consumer's from now on; none if there is none within that time.

        Raises:
            Unavailable: the connection has ended, or Redis refuses.
        """
        options = self._options
        if self._own_id is not None:
            reply = self._command("XREADGROUP", *self._as_consumer(count), "STREAMS", options.name, self._own_id)
            entries = _read_streams(reply)
            self._own_id = entries[-1].id if entries else None
            if entries:
                return entries
        if entries := self._claim(count):
            return entries
        block = max(int(min(seconds, self._timeout / 2) * 1000), 1)
        reply = self._command("XREADGROUP", *self._as_consumer(count), "BLOCK", block, "STREAMS", options.name, ">")
        return _read_streams(reply)

    def settle(self, accepted: Sequence[bytes], rejected: Sequence[Entry]) -> None:
        """Acknowledge entries, and add rejected ones to the dead letters.

        A rejected entry is acknowledged after Redis has confirmed that it is among the dead letters.
        """
        options = self._options
        commands: list[bytes] = []
        if not options.dead_letters:
            accepted = [*accepted, *(entry.id for entry in rejected)]
        else:
            for entry in rejected:
                commands.append(_encode("XADD", options.dead_letters, "*", *entry.fields))
                self._owed.append(entry.id)
        if accepted:
            commands.append(_encode("XACK", options.name, options.group, *accepted))
            self._owed.append(None)
        # A connection that has ended is noticed by the next command.
        with suppress(Lost):
            self._link.send(b"".join(commands), time.monotonic() + self._timeout)

    def has_more(self) -> bool:
        """Return whether there are entries that could be read now.

        Raises:
            Unavailable: the connection has ended, or Redis refuses.
        """
        options = self._options
        last = self._command("XREVRANGE", options.name, "+", "-", "COUNT", 1)
        groups = [
            dict(zip(each[::2], each[1::2], strict=True)) for each in self._command("XINFO", "GROUPS", options.name)
        ]
        delivered = next(
            (each[b"last-delivered-id"] for each in groups if each[b"name"] == options.group.encode()), b"0-0"
        )
        if last and _number(last[0][0]) > _number(delivered):
            return True
        if self._own_id is not None and self._pending("0", self._consumer):
            return True
        return self._pending(str(self._claim_ms), "")

    def leave(self, unsettled: Sequence[bytes]) -> None:
        """Give entries back, so that another consumer can take them over at once, and leave the group."""
        options, is_known = self._options, bool(self._refusal)
        with suppress(Unavailable):
            self._read_owed()
            if unsettled:
                self._command(
                    "XCLAIM", options.name, options.group, RELEASED, 0, *unsettled, "IDLE", self._claim_ms, "JUSTID"
                )
            # Deleting a consumer would delete its pending entries, too.
            if not self._pending("0", self._consumer):
                self._command("XGROUP", "DELCONSUMER", options.name, options.group, self._consumer)
        if self._refusal and not is_known:
            logger.error(
                "Stream %r, group %r: messages could not be settled and will come again: %s",
                options.name,
                options.group,
                self._refusal,
            )
        self._link.close()

    @property
    def _claim_ms(self) -> int:
        return max(int(self._options.claim_idle * 1000), 1)

    def _claim(self, count: int) -> list[Entry]:
        """Take over entries of consumers that have vanished."""
        if time.monotonic() < self._claim_at:
            return []
        options = self._options
        cursor, entries, *_ = self._command(
            "XAUTOCLAIM",
            options.name,
            options.group,
            self._consumer,
            self._claim_ms,
            self._claim_cursor,
            "COUNT",
            count,
        )
        self._claim_cursor = cursor
        if cursor == b"0-0":
            self._claim_at = time.monotonic() + min(options.claim_idle / 2, MAX_CLAIM_INTERVAL)
        return _read_entries(entries)

    def _pending(self, idle: str, consumer: str) -> bool:
        options = self._options
        named = [consumer] if consumer else []
        return bool(self._command("XPENDING", options.name, options.group, "IDLE", idle, "-", "+", 1, *named))

    def _as_consumer(self, count: int) -> tuple[str | int, ...]:
        return "GROUP", self._options.group, self._consumer, "COUNT", count

    def _command(self, *arguments: str | int | bytes) -> Any:
        self._read_owed()
        try:
            return self._execute(*arguments)
        except redis.ResponseError as error:
            raise Unavailable(_explain_reply(str(error))) from error

    def _execute(self, *arguments: str | int | bytes) -> Any:
        try:
            return self._link.execute(*arguments)
        except redis.ResponseError:
            raise
        except (redis.RedisError, OSError, Lost) as error:
            raise Unavailable(explain(error)) from error

    def _read_owed(self) -> None:
        """Read the replies to acknowledgements, and acknowledge what is among the dead letters now."""
        while self._owed:
            owed, self._owed = self._owed, []
            replies = Replies()
            try:
                self._link.receive(replies, len(owed), time.monotonic() + self._timeout)
            except Lost as error:
                raise Unavailable(str(error)) from error
            dead = [id for position, id in enumerate(owed) if id is not None and position not in replies.errors]
            self.settle(dead, [])
            if replies.errors:
                # The entries are still this consumer's, which reads them again when it has reconnected.
                self._refusal = _explain_reply(next(iter(replies.errors.values())))
        if self._refusal:
            raise Unavailable(f"messages cannot be settled: {self._refusal}")


def _explain_reply(error: str) -> str:
    code = code_of(error)
    remedy = REMEDIES.get(code) or OUTAGES.get(code)
    return f"{remedy} ({error})" if remedy else error


def _encode(*arguments: str | bytes) -> bytes:
    encoded = [each.encode() if isinstance(each, str) else each for each in arguments]
    return b"*%d\r\n" % len(encoded) + b"".join(map(encode_bytes, encoded))


def _read_streams(reply: Any) -> list[Entry]:
    """Return the entries of a reply to XREADGROUP for one stream."""
    return _read_entries(reply[0][1]) if reply else []


def _read_entries(entries: Any) -> list[Entry]:
    """Return entries. One that was deleted or trimmed while it was pending has no fields any more."""
    return [Entry(id, fields or []) for id, fields in (each for each in entries if each)]


def _number(id: bytes) -> tuple[int, ...]:
    return tuple(map(int, id.split(b"-")))
