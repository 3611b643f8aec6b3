"""The contract of a source: it claims and settles the batches of one worker."""

import abc
import math
from collections.abc import Set
from contextlib import AbstractContextManager

from django_outbox.messages import Message
from django_outbox.stores import Claim, Lease, Settlement


class Source(abc.ABC):
    """Claims and settles the batches of one worker, and remembers where its claims stand.

    Attributes:
        using: the alias of the database that it claims from.
    """

    using: str

    @abc.abstractmethod
    def claim(self, limit: int) -> AbstractContextManager[Claim]:
        """Claim at most `limit` due messages for as long as the context is open.

        Leaving the context without `settle` returns the whole batch as it was.
        """

    @abc.abstractmethod
    def claim_one(self, message: Message) -> AbstractContextManager[Claim]:
        """Claim a message that was claimed before, if it has not changed and no other relay has it."""

    @property
    @abc.abstractmethod
    def is_late(self) -> bool:
        """Whether the last claim may end before something that is published now can be settled."""

    @abc.abstractmethod
    def lease(self, message: Message) -> Lease | None:
        """Take the lease of a message of the open claim, or return None if another relay works on it or on its key."""

    @abc.abstractmethod
    def renew(self, lease: Lease) -> bool:
        """Let a lease last from now on; return False if it is lost. Any thread may call it, on its own connection."""

    @abc.abstractmethod
    def claim_leased(self, message: Message, lease: Lease) -> AbstractContextManager[Claim]:
        """Claim a message that this worker has leased, if it has not lost the lease."""

    @abc.abstractmethod
    def settle(self, claim: Claim, settlement: Settlement) -> None:
        """Write the new states of the claim's messages."""

    @abc.abstractmethod
    def watch(self) -> AbstractContextManager[None]:
        """Watch the database calls of a block, and end the connection of one that takes longer than a claim may."""

    @abc.abstractmethod
    def find_paused_types(self) -> frozenset[str]:
        """Return the types of this publisher that are paused now."""

    @abc.abstractmethod
    def rewind(self) -> None:
        """Look for messages without a key from the beginning again, because some went back as they were."""

    @property
    @abc.abstractmethod
    def exhausted(self) -> bool:
        """Whether the last claim found nothing, and nothing was due anywhere."""

    @property
    @abc.abstractmethod
    def complete(self) -> bool:
        """Whether the last claim looked at every key; if not, the next one continues."""

    @property
    @abc.abstractmethod
    def lags(self) -> bool:
        """Whether the next claim should follow at once, although this one found nothing."""

    @property
    def longest_wait(self) -> float:
        """The seconds that an idle worker may wait for a wake-up."""
        return math.inf

    @abc.abstractmethod
    def sweep_next(self) -> None:
        """Make the next claim look everywhere, regardless of the cost."""

    @property
    @abc.abstractmethod
    def wake_ups(self) -> Set[str]:
        """The names of the wake-ups that end an idle wait of its worker."""

    def close(self) -> None:
        """Release what it holds, apart from the database connection."""
