"""The rows of `KeyLock`: the numbers of the locks of keys and partitions, and the leases of messages.

With a lease, a message belongs to one relay while no transaction is open. A lease is a row with the time at which it
ends. Until then, the message's `available_at` is the same time, so claims skip it and the later messages of its key at
no cost.
"""

import datetime
from collections.abc import Collection

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from django_outbox.db.fields import partition_of
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import KeyLock, OutboxMessage
from django_outbox.stores.claiming import lock_number
from django_outbox.stores.clock import boot_time, read_clock

KEY_LOCKS = 1024
"""Number of locks that all keys share: a lock for each of 100,000 keys would use up the server's locks."""

FIRST_PARTITION = 2**31
"""Separates the numbers of leased partitions from the numbers of slots."""

LOOK_AGAIN = datetime.timedelta(seconds=1)
"""Time after which a message is due again if another relay has its lease."""


def lease_number(publisher: str, id: int, partition: int) -> int:
    """Return the number of the `KeyLock` for the lease of a message: its partition's, or its own without a key."""
    return lock_number(publisher, FIRST_PARTITION + partition) if partition else -id


def key_lock_numbers(keys: Collection[str]) -> list[int]:
    """Return the numbers of the locks for these keys, in the order in which all transactions take them."""
    return sorted({partition_of(key) % KEY_LOCKS for key in keys if key})


class Lease:
    """The right to work on one message, without a transaction, until it ends or is lost to another relay.

    Every method works on the calling thread's connection; only one thread may call them at a time.

    Args:
        seconds: how long it lasts unless it is renewed.
    """

    def __init__(
        self, using: str, number: int, id: int, *, due: datetime.datetime | None, end: datetime.datetime, seconds: float
    ) -> None:
        self.seconds = seconds
        self._using = using
        self._number = number
        self._id = id
        self._due = due
        # The end that is stored: one of two if the answer to a renewal was lost.
        self._ends = [end]
        self._taken_at = boot_time()

    @property
    def may_have_ended(self) -> bool:
        """Whether enough time has passed for another relay to have taken the message."""
        return boot_time() - self._taken_at > self.seconds

    def renew(self) -> bool:
        """Extend it to `seconds` from now; return False if it is lost."""
        began = boot_time()
        end = read_clock(self._using) + datetime.timedelta(seconds=self.seconds)
        self._ends.append(end)
        with transaction.atomic(using=self._using):
            held = self._row.update(held_until=end)
            if held:
                self._message.update(available_at=end)
        self._ends, self._taken_at = [end], began
        return bool(held)

    def lock(self) -> bool:
        """Keep it until the current transaction ends; return False if it is lost."""
        return self._row.select_for_update().first() is not None

    def end(self, *, as_it_was: bool = True) -> None:
        """End it.

        Args:
            as_it_was: whether the message becomes due again as it was; otherwise its new state is written.
        """
        if self._row.delete()[0] and as_it_was:
            self._message.update(available_at=self._due)

    @property
    def _row(self) -> "QuerySet[KeyLock]":
        return KeyLock.objects.using(self._using).filter(number=self._number, held_until__in=self._ends)

    @property
    def _message(self) -> "QuerySet[OutboxMessage]":
        return OutboxMessage.objects.using(self._using).filter(pk=self._id, available_at__in=self._ends)


def take_lease(using: str, number: int, id: int, *, seconds: float) -> Lease | None:
    """Take the lease of a message that the current transaction has claimed; return None if another relay has it.

    In that case the message is postponed briefly, so that other relays neither poll it constantly nor miss it if this
    one dies.
    """
    message = OutboxMessage.objects.using(using).filter(pk=id)
    now, due = message.annotate(now=DatabaseNow()).values_list("now", "available_at").get()
    row = KeyLock.objects.using(using).filter(number=number)
    taken = row.first()
    if taken is not None and taken.held_until is not None and taken.held_until > now:
        # An operator has made it due, or it is an earlier message of the key that was committed late. Every claim would
        # find it first.
        message.update(available_at=min(taken.held_until, now + LOOK_AGAIN))
        return None
    end = now + datetime.timedelta(seconds=seconds)
    if taken is None:
        KeyLock.objects.using(using).create(number=number, held_until=end)
    else:
        row.update(held_until=end)
    if not message.update(available_at=end):
        raise IntegrityError(f"a trigger or a policy skips changes of message {id} without an error")
    return Lease(using, number, id, due=due, end=end, seconds=seconds)


def find_leased(using: str, numbers: Collection[int]) -> set[int]:
    """Return the numbers of the leases that relays have now."""
    rows = KeyLock.objects.using(using).filter(number__in=numbers, held_until__gt=DatabaseNow())
    return set(rows.values_list("number", flat=True))
