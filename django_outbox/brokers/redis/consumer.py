"""`RedisStreamsConsumer`: reads a stream."""

import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

from django_outbox.brokers.consumer import Consumer, Incoming, Unavailable
from django_outbox.brokers.redis.entries import StreamEntry, read_entry
from django_outbox.brokers.redis.errors import Lost
from django_outbox.brokers.redis.group import FIRST_COUNT, ConsumerGroup
from django_outbox.brokers.redis.names import make_name
from django_outbox.brokers.redis.options import StreamOptions, read_options
from django_outbox.brokers.redis.servers import make_servers


class RedisStreamsConsumer(Consumer):
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

    def __init__(
        self,
        alias: str,
        *,
        url: str | Sequence[str],
        stream: str,
        group: str,
        create_group: Literal["beginning", "end"] | None = "beginning",
        consumer: str = "",
        claim_idle: float = 300.0,
        dead_letters: str = "",
        sentinels: str | Sequence[str] = (),
        cluster: bool = False,
        connect_timeout: float = 5.0,
        timeout: float = 15.0,
        ssl: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        self._options = read_options(
            url=url, sentinels=sentinels, cluster=cluster, ssl=ssl, timeout=timeout, connect_timeout=connect_timeout
        )
        self._stream = StreamOptions(
            name=stream,
            group=group,
            create_group=create_group,
            consumer=consumer,
            claim_idle=claim_idle,
            dead_letters=dead_letters,
            rejects="reject" in (self.invalid, self.unknown_types),
            cluster=cluster,
        )
        self._servers = make_servers(self._options, f"Consumer {alias!r}")
        self._group: ConsumerGroup | None = None
        # The name that it keeps when it reconnects, so that it gets the entries again that it has not settled.
        self._name = ""
        self._pid = 0
        self._begins = True
        self._last_tag = 0
        self._entries: dict[int, StreamEntry] = {}
        self._received: deque[Incoming] = deque()
        self._average_size = self.batch_bytes / FIRST_COUNT
        self._is_paused = False

    @property
    def source(self) -> str:
        return f"stream {self._stream.name!r} at {self._options.describe()}, group {self._stream.group!r}"

    def open(self, max_messages: int | None = None) -> None:
        self.close()
        if self._pid != os.getpid():
            self._pid, self._begins = os.getpid(), True
            self._name = self._stream.consumer or make_name()
        try:
            connection = self._servers.connect(self._servers.find(self._stream.name))
        except Lost as error:
            self._servers.forget()
            raise Unavailable(str(error)) from error
        try:
            self._group = ConsumerGroup(
                connection, self._stream, self._name, self._options.timeout, begins=self._begins
            )
        except Unavailable:
            connection.close()
            self._servers.forget()
            raise
        self._is_paused = False

    def receive(self, seconds: float) -> list[Incoming]:
        group = self._open_group()
        if not self._received:
            if self._is_paused:
                time.sleep(seconds)
            else:
                self._keep(group.read(self._count(), seconds))
                self._begins = self._begins and not group.has_begun
        return self._take()

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        entries = {message.tag: self._entries.pop(message.tag) for message in batch if message.tag in self._entries}
        if self._group is not None:
            accepted = [entry.id for tag, entry in entries.items() if tag not in rejected]
            self._group.settle(accepted, [entry for tag, entry in entries.items() if tag in rejected])

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def is_drained(self) -> bool:
        return not self._received and not self._open_group().has_more()

    def close(self) -> None:
        entries, self._entries = self._entries, {}
        self._received.clear()
        if self._group is not None:
            group, self._group = self._group, None
            group.leave([entry.id for entry in entries.values()])
            # The stream may have moved to another node.
            self._servers.forget()

    def _keep(self, entries: Sequence[StreamEntry]) -> None:
        """Keep entries until they are settled. An entry that is kept already was taken over from this very consumer."""
        known = {entry.id for entry in self._entries.values()}
        gone = []
        for entry in entries:
            if entry.id in known:
                continue
            if not entry.fields:
                gone.append(entry.id)
                continue
            self._last_tag += 1
            self._entries[self._last_tag] = entry
            self._received.append(read_entry(entry, self._last_tag, self._stream.name))
            self._average_size = 0.9 * self._average_size + 0.1 * entry.size
        if gone:
            self._open_group().lose(gone)

    def _count(self) -> int:
        """Return the number of entries to read, which should not exceed the bytes of a batch by much."""
        return max(1, min(self.batch_size, int(self.batch_bytes / max(self._average_size, 1))))

    def _take(self) -> list[Incoming]:
        """Return a batch of what was received."""
        batch: list[Incoming] = []
        size = 0
        while self._received and len(batch) < self.batch_size:
            size += len(self._received[0].body)
            if batch and size > self.batch_bytes:
                break
            batch.append(self._received.popleft())
        return batch

    def _open_group(self) -> ConsumerGroup:
        if self._group is None:
            raise Unavailable("the consumer is not connected")
        return self._group
