"""Where the streams are: on one server, on the master that Sentinels name, or on the nodes of a cluster."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from django_outbox.brokers.redis.connection import RedisConnection, RedisPool
from django_outbox.brokers.redis.errors import Lost, explain
from django_outbox.brokers.redis.options import Address, RedisOptions, name_addresses
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


class Servers:
    """The connections to one server, or to the master that Sentinels name; they are asked for each new connection.

    Methods raise `Lost` if a server cannot be reached, or if the servers cannot be found out.

    Attributes:
        suspensions: the nodes of a cluster that accept no messages.
    """

    def __init__(self, options: RedisOptions, owner: str) -> None:
        self.options = options
        self.suspensions: Suspensions[Address] = Suspensions(owner, lambda node: f"the node {name_addresses([node])}")
        self._pools: dict[Address, RedisPool] = {}
        self._lock = threading.Lock()

    @property
    def is_down(self) -> bool:
        """Whether an unanswered message shows an outage, because no server that is known accepts messages."""
        return True

    def find(self, stream: str) -> Address:
        return SINGLE

    def split(
        self, indexes: Sequence[int], stream_of: Callable[[int], str]
    ) -> Iterator[tuple[Address, list[int], str]]:
        """Yield the indexes of messages for each server; with the reason, if their server cannot be found out."""
        yield SINGLE, [*indexes], ""

    def connect(self, server: Address) -> RedisConnection:
        return RedisConnection(self.options, self._find_master() if self.options.master else self.options.addresses[0])

    def all(self) -> Sequence[Address]:
        return (SINGLE,)

    def forget(self) -> None:
        """Forget which server has which stream, because that may have changed."""
        self.close()

    def pool(self, server: Address) -> RedisPool:
        with self._lock:
            found = self._pools.get(server)
            if found is None:
                found = self._pools[server] = RedisPool(lambda: self.connect(server))
            return found

    def suspend(self, server: Address, reason: str) -> None:
        """Set messages for a node aside, because others may accept theirs."""
        self.suspensions.begin(server, reason, NODE_UNAVAILABLE, least=NODE_WAIT)

    def close(self) -> None:
        with self._lock:
            closing, self._pools = self._pools, {}
        for pool in closing.values():
            pool.close()

    def _find_master(self) -> Address:
        options = self.options
        where = f"the Sentinels at {name_addresses(options.sentinel_addresses)}"
        arguments: dict[str, Any] = {**options.sentinel_arguments, "retry": Retry(NoBackoff(), 0)}
        sentinel = Sentinel(options.sentinel_addresses, sentinel_kwargs=arguments)  # type: ignore[no-untyped-call]
        try:
            host, port = sentinel.discover_master(options.master)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            reason = f"know no master {options.master!r} that is up, or cannot be reached; check url and sentinels"
            raise Lost(f"{where} {reason}") from None
        except redis.RedisError as error:
            raise Lost(f"{where}: {explain(error)}") from error
        finally:
            for client in sentinel.sentinels:
                client.close()
        return str(host), int(port)


class Cluster(Servers):
    """The nodes of a cluster; each has some of the 16,384 slots."""

    def __init__(self, options: RedisOptions, owner: str) -> None:
        super().__init__(options, owner)
        self._ranges: list[Range] = []
        self._nodes: list[Address] = []
        self._loaded_at = 0.0
        self._slot_of = lru_cache(maxsize=10_000)(lambda stream: key_slot(stream.encode()))

    @property
    def is_down(self) -> bool:
        return all(node in self.suspensions for node in self._nodes)

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
                place = (self.find(stream_of(index)), "")
            except Lost as error:
                lost = str(error)
                place = (SINGLE, lost)
            found.setdefault(place, []).append(index)
        if lost:
            self.forget()
        for (server, reason), each in found.items():
            yield server, each, reason

    def find(self, stream: str) -> Address:
        slot = self._slot_of(stream)
        for first, last, address in self._ranges or self._load():
            if first <= slot <= last:
                return address
        raise Lost(f"no node of the cluster serves slot {slot:,}: check its nodes")

    def all(self) -> Sequence[Address]:
        found = dict.fromkeys(address for _, _, address in self._ranges or self._load())
        return sorted(found, key=self.suspensions.__contains__)

    def connect(self, server: Address) -> RedisConnection:
        return RedisConnection(self.options, server)

    def forget(self) -> None:
        self._ranges = []

    def _load(self) -> list[Range]:
        known = dict.fromkeys([*self.options.addresses, *self._nodes])
        reasons: list[str] = []
        deadline = time.monotonic() + self.options.timeout
        for address in sorted(known, key=self.suspensions.__contains__):
            if time.monotonic() > deadline:
                break
            try:
                ranges = self._read_slots(address)
            except (redis.RedisError, OSError, Lost) as error:
                reasons.append(f"{name_addresses([address])}: {explain(error)}")
                continue
            if ranges:
                self._ranges, self._loaded_at = ranges, time.monotonic()
                self._nodes = list(dict.fromkeys(address for _, _, address in ranges))
                self._drop_others()
                return ranges
            reasons.append(f"{name_addresses([address])}: it serves no slots")
        raise Lost("; ".join(reasons))

    def _read_slots(self, address: Address) -> list[Range]:
        """Ask a node for all slots. It returns an empty address for itself."""
        connection = self.connect(address)
        try:
            reply = connection.execute("CLUSTER", "SLOTS")
        finally:
            connection.close()
        return [
            (first, last, (master[0].decode() if master[0] else address[0], master[1]))
            for first, last, master, *_ in reply
        ]

    def _drop_others(self) -> None:
        with self._lock:
            dropped = [self._pools.pop(address) for address in list(self._pools) if address not in self._nodes]
        for pool in dropped:
            pool.close()
        for server in self.suspensions:
            if server not in self._nodes:
                # Its messages go to another server now.
                self.suspensions.end(server)


def make_servers(options: RedisOptions, owner: str) -> Servers:
    return Cluster(options, owner) if options.cluster else Servers(options, owner)
