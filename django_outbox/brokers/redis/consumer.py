"""`RedisStreamsConsumer`: reads a stream as a member of a consumer group.

https://redis.io/docs/latest/commands/xreadgroup/
"""

import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import redis
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import ConnectedConsumer, ConsumerConnection, Incoming, Unavailable, take_batch
from django_outbox.brokers.options import require_seconds, require_text
from django_outbox.brokers.redis.connection import RedisConnection, Replies, encode_command
from django_outbox.brokers.redis.encoding import (
    StreamEntry,
    as_dict,
    find_group,
    read_delivery,
    read_entries,
    read_streams,
)
from django_outbox.brokers.redis.errors import Lost, explain
from django_outbox.brokers.redis.losses import Losses
from django_outbox.brokers.redis.options import RedisOptions
from django_outbox.utils.logs import logger

MAX_CLAIM_INTERVAL = 30.0
"""Maximum seconds between two searches for entries to take over."""

FIRST_COUNT = 10
"""Number of entries in the first read, when nothing is known of their size."""

RELEASED = "outbox-released"
"""The consumer that gets entries that a consumer gives back; they can be taken over at once."""


@dataclass(kw_only=True, eq=False, repr=False)
class RedisStreamsConsumer(RedisOptions, ConnectedConsumer):
    """Reads a stream as a member of a consumer group, and acknowledges an entry after it was stored.

    Entries stay in the stream when they are acknowledged: trim it with the publisher's `max_length`, or with XTRIM.

    Args:
        alias: the consumer's name in the settings.
        stream: the stream to read.
        group: the consumer group. Each entry goes to one member of a group. A group that does not exist is created, and
            so is the stream; it gets all entries that are there already.
        consumer: the name of this consumer within the group, which no other running process may have. A process with
            the name of one that was killed gets its entries first, so the order is kept. Blank for a name that no
            process has had: entries of a process that was killed come after `claim_idle`, behind later ones.
        claim_idle: seconds after which entries are taken over from a consumer that has vanished without settling them.
        timeout: seconds that Redis has to reply.
        options: `url`, `sentinels` and `ssl` as for `RedisStreamsPublisher`, and the
            options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "Redis"

    stream: str
    group: str
    consumer: str = ""
    claim_idle: float = 300.0
    timeout: float = 15.0

    def __post_init__(self) -> None:
        ConnectedConsumer.__post_init__(self)
        RedisOptions.__post_init__(self)
        require_text("stream", self.stream, "'order.created'")
        require_text("group", self.group, "'billing'")
        require_seconds("claim_idle", self.claim_idle)
        consumer: object = self.consumer
        if not isinstance(consumer, str) or consumer == RELEASED:
            raise ImproperlyConfigured(f"consumer is {consumer!r}; it must be a string, and not {RELEASED!r}.")
        # The name that it keeps when it reconnects, so that it gets the entries again that it has not settled.
        self._name = ""

    @property
    def source(self) -> str:
        return f"stream {self.stream!r} at {self.describe_servers()}, group {self.group!r}"

    def _make_connection(self) -> "RedisConsumerConnection":
        self._name = self._name or self.consumer or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            connection = RedisConnection(self)
        except Lost as error:
            raise Unavailable(str(error)) from error
        return RedisConsumerConnection(connection, self, self._name)


class RedisConsumerConnection(ConsumerConnection):
    """Reads the entries that this consumer has not settled yet, then new ones, and entries that others left.

    Acknowledgements are sent without waiting; their replies are read before the next command.
    """

    def __init__(self, connection: RedisConnection, options: RedisStreamsConsumer, name: str) -> None:
        self._owner = f"Stream {options.stream!r}, group {options.group!r}"
        self._connection = connection
        self._options = options
        self._place = options.stream, options.group
        self._consumer = name
        self._has_group = False
        self._claim_ms = max(int(options.claim_idle * 1000), 1)
        self._last_tag = 0
        self._unsettled: dict[int, StreamEntry] = {}
        self._received: deque[Incoming] = deque()
        self._average_size = options.batch_bytes / FIRST_COUNT
        # Number of acknowledgements without a reply so far.
        self._owed = 0
        self._refusal = ""
        self._own_id: bytes | None = b"0"
        self._claim_cursor = b"0-0"
        self._claim_at = 0.0
        self._losses = Losses(self._owner)

    def open(self) -> None:
        """Do nothing: it is connected, and `receive` creates what is missing."""

    def _find_or_create_group(self) -> None:
        try:
            self._command("XPENDING", *self._place)
        except Unavailable:
            # If another process creates it at the same time, the next connection finds it.
            self._command("XGROUP", "CREATE", *self._place, "0", "MKSTREAM")
        self._has_group = True

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._has_group:
            self._find_or_create_group()
        if not self._received:
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
            self._losses.log()
            self._acknowledge(gone)

    def _read(self, count: int, seconds: float) -> list[StreamEntry]:
        """Return the next entries, which are this consumer's from now on; none if there is none within that time.

        Every method that reads raises `Unavailable` if the connection has ended, or if Redis refuses.
        """
        if self._own_id is not None:
            entries = read_streams(self._command(*self._reading(count, self._own_id)))
            self._own_id = entries[-1].id if entries else None
            if entries:
                return entries
        return self._claim(count) or self._read_new(count) or self._await_new(count, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        found = [self._unsettled.pop(message.tag, None) for message in batch]
        self._acknowledge([entry.id for entry in found if entry is not None])

    def _acknowledge(self, ids: Sequence[bytes]) -> None:
        if ids:
            self._owed += 1
            # A connection that has ended is noticed by the next command.
            with suppress(Lost):
                command = encode_command("XACK", *self._place, *ids)
                self._connection.send(command, time.monotonic() + self._options.timeout)

    def close(self) -> None:
        """Give entries back, so that another consumer can take them over at once, and leave the group."""
        is_known = bool(self._refusal)
        own = [entry.id for entry in self._unsettled.values()]
        with suppress(Unavailable):
            if own:
                self._command("XCLAIM", *self._place, RELEASED, 0, *own, "IDLE", self._claim_ms, "JUSTID")
            # Deleting a consumer would delete its pending entries, too.
            if not self._options.consumer and not self._command("XPENDING", *self._place, "-", "+", 1, self._consumer):
                self._command("XGROUP", "DELCONSUMER", *self._place, self._consumer)
        if self._refusal and not is_known:
            logger.error(
                "%(subject)s: messages could not be settled and will be redelivered: %(reason)s",
                event="consumer.acknowledgements_lost",
                subject=self._owner,
                reason=self._refusal,
            )
        self._connection.close()

    def _claim(self, count: int) -> list[StreamEntry]:
        """Take over entries that are old enough, and return them; the cursor is "0-0" after the last one."""
        if time.monotonic() < self._claim_at:
            return []
        command = "XAUTOCLAIM", *self._place, self._consumer, self._claim_ms, self._claim_cursor, "COUNT", count
        self._claim_cursor, found, deleted = self._command(*command)
        if self._claim_cursor == b"0-0":
            self._claim_at = time.monotonic() + min(self._options.claim_idle / 2, MAX_CLAIM_INTERVAL)
        if deleted:
            self._losses.log()
        return read_entries(found)

    def _read_new(self, count: int) -> list[StreamEntry]:
        """Return new entries if there are any, and log whether others were trimmed before the group has read them."""
        name, losses = self._options.stream, self._losses
        if losses.last_id is None:
            groups = self._command("XINFO", "GROUPS", name)
            losses.last_id = find_group(groups, self._options.group)[b"last-delivered-id"]
        groups, info, reply = self._commands(
            ("XINFO", "GROUPS", name), ("XINFO", "STREAM", name), self._reading(count, ">")
        )
        entries = read_streams(reply)
        if entries:
            losses.find_gap(find_group(groups, self._options.group), as_dict(info))
        return losses.note_read(entries)

    def _await_new(self, count: int, seconds: float) -> list[StreamEntry]:
        block = max(int(min(seconds, self._options.timeout / 2) * 1000), 1)
        return self._losses.note_read(read_streams(self._command(*self._reading(count, ">", "BLOCK", block))))

    def _reading(self, count: int, after: str | bytes, *arguments: str | int) -> tuple[str | int | bytes, ...]:
        stream, group = self._place
        return "XREADGROUP", "GROUP", group, self._consumer, "COUNT", count, *arguments, "STREAMS", stream, after

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
        owed, self._owed = self._owed, 0
        replies = Replies()
        try:
            self._connection.receive(replies, owed, time.monotonic() + self._options.timeout)
        except Lost as error:
            # A reply that came late would be taken for the reply to the next command.
            self._connection.close()
            raise Unavailable(str(error)) from error
        if replies.errors:
            # The entries are still this consumer's, which reads them again when it has reconnected.
            self._refusal = next(iter(replies.errors.values()))
        if self._refusal:
            raise Unavailable(f"messages cannot be settled: {self._refusal}")
