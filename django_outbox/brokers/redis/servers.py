"""Where the streams are: on one server, on the master that Sentinels name, or on the nodes of a cluster."""

import abc
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from django_outbox.brokers.redis.errors import explain
from django_outbox.brokers.redis.link import Link, Lost
from django_outbox.brokers.redis.links import Links
from django_outbox.brokers.redis.options import Address, ConnectionOptions, name_addresses
from django_outbox.brokers.suspensions import Suspensions

Range = tuple[int, int, Address]
"""The first and the last slot of a range, and the node that has them."""

SINGLE: Address = ("", 0)
"""Stands for the only server."""

NODE_WAIT = 5.0
"""Minimum seconds for which messages for a node of a cluster are set aside."""

NODE_UNAVAILABLE = "redis.node_unavailable"

REFRESH_INTERVAL = 1.0
"""Minimum seconds between two questions for the slots of all nodes while one of them is suspended."""


class Servers(abc.ABC):
    """The connections to the servers that have the streams.

    Args:
        options: how to connect.
        owner: the publisher or the consumer, for the log.

    Attributes:
        suspensions: the nodes of a cluster that accept no messages.
    """

    def __init__(self, options: ConnectionOptions, owner: str) -> None:
        self.options = options
        self.suspensions: Suspensions[Address] = Suspensions(owner, _name_node)
        self._links: dict[Address, Links] = {}
        self._lock = threading.Lock()

    @abc.abstractmethod
    def find(self, stream: str) -> Address:
        """Return the server that has a stream.

        Raises:
            Lost: it cannot be found out.
        """

    def split(
        self, indexes: Sequence[int], stream_of: Callable[[int], str]
    ) -> Iterator[tuple[Address, list[int], str]]:
        """Yield the messages for each server, or those whose server cannot be found out, with the reason.

        Args:
            indexes: the messages, by their index in the batch.
            stream_of: returns the stream of one of them.
        """
        yield SINGLE, [*indexes], ""

    @abc.abstractmethod
    def connect(self, server: Address) -> Link:
        """Open a connection.

        Raises:
            Lost: the server cannot be reached.
        """

    def all(self) -> Sequence[Address]:
        """Return all servers.

        Raises:
            Lost: they cannot be found out.
        """
        return (SINGLE,)

    def others(self, servers: Collection[Address]) -> Iterator[tuple[Address, str]]:
        """Yield servers besides these that are not suspended, each with a stream that it has, or a blank.

        Raises:
            Lost: they cannot be found out.
        """
        yield from ()

    def forget(self) -> None:
        """Forget which server has which stream, because that may have changed."""
        self.close()

    def links(self, server: Address) -> Links:
        """Return the connections to a server."""
        with self._lock:
            found = self._links.get(server)
            if found is None:
                found = self._links[server] = Links(lambda: self.connect(server))
            return found

    def suspend(self, server: Address, reason: str, waited: float) -> None:
        """Set messages for a server aside for a while, because others accept messages.

        Args:
            server: the server.
            reason: the error.
            waited: seconds that were spent on it in vain; it is left alone for ten times as long.
        """
        self.suspensions.begin(server, reason, NODE_UNAVAILABLE, least=max(NODE_WAIT, waited * 10))

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            closing, self._links = self._links, {}
        for links in closing.values():
            links.close()


class SingleServer(Servers):
    """One server."""

    def find(self, stream: str) -> Address:
        return SINGLE

    def connect(self, server: Address) -> Link:
        return Link(self.options, self.options.addresses[0])


class SentinelMaster(Servers):
    """The server that is the master according to the Sentinels; they are asked for each new connection."""

    def find(self, stream: str) -> Address:
        return SINGLE

    def connect(self, server: Address) -> Link:
        options = self.options
        arguments: dict[str, Any] = {**options.sentinel_arguments, "retry": Retry(NoBackoff(), 0)}
        sentinel = Sentinel(options.sentinels, sentinel_kwargs=arguments)  # type: ignore[no-untyped-call]
        try:
            host, port = sentinel.discover_master(options.master)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise Lost(
                f"the Sentinels at {name_addresses(options.sentinels)} know no master {options.master!r} that is up, "
                "or cannot be reached; check url and sentinels"
            ) from None
        except redis.RedisError as error:
            raise Lost(f"the Sentinels at {name_addresses(options.sentinels)}: {explain(error)}") from error
        finally:
            for client in sentinel.sentinels:
                client.close()
        return Link(options, (str(host), int(port)))


class Cluster(Servers):
    """The nodes of a cluster, each of which has some of the 16,384 slots."""

    def __init__(self, options: ConnectionOptions, owner: str) -> None:
        super().__init__(options, owner)
        self._ranges: list[Range] = []
        self._loaded_at = 0.0
        self._slots: dict[str, int] = {}
        self._failed_at: dict[Address, float] = {}

    def split(
        self, indexes: Sequence[int], stream_of: Callable[[int], str]
    ) -> Iterator[tuple[Address, list[int], str]]:
        if self.suspensions and time.monotonic() - self._loaded_at > REFRESH_INTERVAL:
            # Another node may have taken over the slots of one that is suspended.
            self.forget()
        found: dict[tuple[Address, str], list[int]] = {}
        lost = ""
        for index in indexes:
            try:
                if lost and not self._ranges:
                    # The nodes were asked just now, and each of them may take until the timeout.
                    raise Lost(lost)
                place = (self._find(stream_of(index)), "")
            except Lost as error:
                lost = str(error)
                place = (SINGLE, lost)
            found.setdefault(place, []).append(index)
        if lost:
            self.forget()
        for (server, reason), each in found.items():
            yield server, each, reason

    def find(self, stream: str) -> Address:
        try:
            return self._find(stream)
        except Lost:
            self.forget()
            raise

    def _find(self, stream: str) -> Address:
        slot = self._slots.get(stream)
        if slot is None:
            if len(self._slots) > 10_000:
                self._slots.clear()
            slot = self._slots[stream] = key_slot(stream.encode())
        address = locate(self._ranges or self._load(), slot)
        if address is None:
            raise Lost(f"no node of the cluster serves slot {slot:,}: check its nodes")
        return address

    def all(self) -> Sequence[Address]:
        found = dict.fromkeys(address for _, _, address in self._ranges or self._load())
        return sorted(found, key=self._preference)

    def others(self, servers: Collection[Address]) -> Iterator[tuple[Address, str]]:
        ranges = self._ranges or self._load()
        streams = {locate(ranges, slot): stream for stream, slot in list(self._slots.items())}
        for server in self.all():
            if server not in servers and server not in self.suspensions:
                yield server, streams.get(server, "")

    def connect(self, server: Address) -> Link:
        try:
            link = Link(self.options, server)
        except Lost:
            self._failed_at[server] = time.monotonic()
            raise
        self._failed_at.pop(server, None)
        return link

    def forget(self) -> None:
        self._ranges = []

    def _preference(self, server: Address) -> tuple[bool, float]:
        """Sort the nodes that failed a moment ago last: a node that hangs may take all of the time."""
        return server in self.suspensions, self._failed_at.get(server, 0.0)

    def _load(self) -> list[Range]:
        """Ask the nodes that are known for the slots of all nodes."""
        with self._lock:
            known = [*self.options.addresses, *self._links]
        reasons: list[str] = []
        deadline = time.monotonic() + self.options.timeout
        for address in sorted(dict.fromkeys(known), key=self._preference):
            if time.monotonic() > deadline:
                break
            try:
                link = self.connect(address)
            except Lost as error:
                reasons.append(f"{name_addresses([address])}: {error}")
                continue
            try:
                ranges = read_slots(link.execute("CLUSTER", "SLOTS"), address[0])
            except (redis.RedisError, OSError) as error:
                reasons.append(f"{name_addresses([address])}: {explain(error)}")
                continue
            finally:
                link.close()
            if ranges:
                self._ranges, self._loaded_at = ranges, time.monotonic()
                self._drop_others(ranges)
                return ranges
            reasons.append(f"{name_addresses([address])}: it serves no slots")
        raise Lost("; ".join(reasons))

    def _drop_others(self, ranges: Sequence[Range]) -> None:
        """Close the connections to servers that have no slots any more."""
        found = {address for _, _, address in ranges}
        with self._lock:
            dropped = [self._links.pop(address) for address in list(self._links) if address not in found]
        for links in dropped:
            links.close()
        for server in self.suspensions:
            if server not in found:
                # Its messages go to another server now.
                self.suspensions.end(server)


def _name_node(server: Address) -> str:
    return f"the node {name_addresses([server])}"


def locate(ranges: Sequence[Range], slot: int) -> Address | None:
    """Return the node that has a slot; None if no node has it."""
    return next((address for first, last, address in ranges if first <= slot <= last), None)


def read_slots(reply: Any, host: str) -> list[Range]:
    """Return the first and last slot of each range and the address of its master, given the reply to CLUSTER SLOTS.

    Args:
        reply: the reply.
        host: the host of the node that was asked; it stands for a blank one.
    """
    return [(first, last, (master[0].decode() if master[0] else host, master[1])) for first, last, master, *_ in reply]


def make_servers(options: ConnectionOptions, owner: str) -> Servers:
    """Return the servers that the options name."""
    if options.cluster:
        return Cluster(options, owner)
    return SentinelMaster(options, owner) if options.master else SingleServer(options, owner)
