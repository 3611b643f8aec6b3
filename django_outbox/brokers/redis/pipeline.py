"""The messages for one server on their way through a connection."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from django_outbox.brokers.redis.encoding import encode_command
from django_outbox.brokers.redis.errors import LEAVE_SERVER, code_of, explain
from django_outbox.brokers.redis.link import Link, Lost
from django_outbox.brokers.redis.links import Links
from django_outbox.brokers.redis.options import Address
from django_outbox.brokers.redis.replies import Replies

ASKING = encode_command("ASKING")

MAX_ASK_TIME = 1.0
"""Maximum number of seconds for which a server is asked whether it has enough replicas."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """When a message is accepted.

    Args:
        replicas: the number of replicas that must have it.
        replica_timeout: seconds that they have for it.
        timeout: seconds for connecting and for all replies.
        stall_timeout: seconds without progress after which one of several servers is given up.
    """

    replicas: int
    replica_timeout: float
    timeout: float
    stall_timeout: float


class Pipeline:
    """Sends messages to a server, and then reads the replies, so that several servers can work at once.

    Args:
        server: the server.
        indexes: the messages, by their index in the batch.
        reason: why they cannot be sent; blank if they can.
        asking: whether the server gets them although another one still has their slot.

    Attributes:
        indexes: the messages that are sent.
        reason: why messages have no reply; blank if all have one.
        accepted: the messages that the server accepted.
        refused: its error for each message that it refused.
        leave: whether another server may be the right one.
        waited: seconds that were spent in vain on a server that did not respond.
    """

    def __init__(self, server: Address, indexes: Sequence[int], reason: str = "", *, asking: bool = False) -> None:
        self.server = server
        self.indexes = indexes
        self.reason = reason
        self.accepted: Sequence[int] = ()
        self.refused: dict[int, str] = {}
        self.leave = False
        self.waited = 0.0
        self._step = 2 if asking else 1
        self._link: Link | None = None
        self._replies = Replies()

    def connect(self, links: Links, guarantees: Guarantees, deadline: float, *, is_trial: bool) -> int:
        """Take a connection, unless it is too late for that. Return the maximum bytes of a payload.

        On trial, nothing is sent to a server without enough replicas, because it would keep a copy each time.
        """
        started = time.monotonic()
        try:
            if started > deadline:
                raise Lost("other servers took too long to respond")
            self._link = links.take()
            if is_trial and (reason := find_missing_replicas(self._link, guarantees)):
                raise Lost(reason)
        except Lost as error:
            self._lose(str(error), started)
            return 0
        return self._link.max_argument

    def send(self, commands: Mapping[int, bytes], guarantees: Guarantees, deadline: float) -> None:
        """Send messages, if there is a connection.

        Args:
            commands: the commands of the messages, by their index.
            guarantees: when a message is accepted.
            deadline: when to give up, in `time.monotonic()`.
        """
        if self._link is None or not self.indexes:
            return
        pieces = [commands[index] for index in self.indexes]
        if self._step == 2:
            pieces = [ASKING + piece for piece in pieces]
        if guarantees.replicas:
            seconds = min(guarantees.replica_timeout, (deadline - time.monotonic()) / 2)
            pieces.append(encode_command("WAIT", str(guarantees.replicas), str(max(int(seconds * 1000), 1))))
        started = time.monotonic()
        try:
            self._link.send(b"".join(pieces), deadline, guarantees.stall_timeout)
        except Lost as error:
            self._lose(str(error), started)

    def receive(self, links: Links, guarantees: Guarantees, deadline: float) -> None:
        """Read the replies, and give the connection back.

        Args:
            links: where the connection comes from.
            guarantees: when a message is accepted.
            deadline: when to give up, in `time.monotonic()`.
        """
        link, count, replicas = self._link, self._step * len(self.indexes), guarantees.replicas
        if link is None:
            return
        started = time.monotonic()
        stall_timeout = guarantees.stall_timeout + (guarantees.replica_timeout if replicas else 0)
        try:
            if count:
                link.receive(self._replies, count + bool(replicas), deadline, stall_timeout)
        except Lost as error:
            self._lose(str(error), started)
        self._sort(replicas, count)
        if self.reason:
            self.waited = time.monotonic() - started
        if self._link is None or self.leave:
            link.close()
        else:
            links.put(link)

    def _sort(self, replicas: int, count: int) -> None:
        """Sort the messages by their replies."""
        step, received, errors = self._step, self._replies.count, self._replies.errors
        accepted = self.indexes[: min(received, count) // step]
        if errors:
            self.refused = {
                index: errors[position]
                for position, index in zip(range(step - 1, count, step), self.indexes, strict=True)
                if position in errors
            }
            accepted = [index for index in accepted if index not in self.refused]
            self.leave = self.leave or any(code_of(error) in LEAVE_SERVER for error in self.refused.values())
        if replicas and accepted and not self._confirmed(replicas, count):
            accepted = ()
        self.accepted = accepted

    def _confirmed(self, replicas: int, position: int) -> bool:
        """Return whether enough replicas have the messages."""
        if not self.reason and position in self._replies.errors:
            self.reason = f"WAIT is refused: {self._replies.errors[position]}"
            # The server may have become a replica.
            self.leave = True
        elif not self.reason:
            confirmed = int(self._replies.last[1:])
            if confirmed < replicas:
                self.reason = too_few_replicas(confirmed, replicas)
        return not self.reason

    def _lose(self, reason: str, started: float) -> None:
        self.reason = reason
        self.waited = time.monotonic() - started
        self.leave = True
        if self._link is not None:
            self._link.close()
            self._link = None


def find_missing_replicas(link: Link, guarantees: Guarantees) -> str:
    """Return the reason if a server has too few replicas, and otherwise an empty string.

    Raises:
        Lost: it does not respond, or is a replica itself.
    """
    if not guarantees.replicas:
        return ""
    seconds = min(guarantees.replica_timeout, MAX_ASK_TIME)
    try:
        timeout = seconds + guarantees.stall_timeout
        confirmed = int(link.execute("WAIT", guarantees.replicas, int(seconds * 1000) or 1, timeout=timeout))
    except (redis.RedisError, OSError) as error:
        raise Lost(explain(error)) from error
    return too_few_replicas(confirmed, guarantees.replicas) if confirmed < guarantees.replicas else ""


def too_few_replicas(confirmed: int, replicas: int) -> str:
    """Return the reason why messages are not accepted although the master has them."""
    return f"{confirmed:,} of {replicas:,} replicas confirmed in time: check the replicas, or lower the option replicas"
