"""The messages that an operation changes, locked so that no relay is delivering one of them."""

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import OperationalError, connections, transaction
from django.db.models import Q

from django_outbox.conf import get_settings
from django_outbox.db.errors import shows_conflict
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status, StreamPosition
from django_outbox.stores import get_store
from django_outbox.stores.clock import read_clock
from django_outbox.stores.locks import find_leased, lease_number

STREAM_PATIENCE = 5.0
"""Seconds to wait for a relay that is delivering messages of a stream. It has no locks of its messages, so none of them
can be changed in the meantime."""


class Target(NamedTuple):
    id: int
    publisher: str
    type: str
    error_class: str
    partition: int
    blocks_key: bool


def messages_with(ids: Sequence[int], using: str) -> OutboxMessageQuerySet:
    return OutboxMessageQuerySet(OutboxMessage, using=using).filter(pk__in=ids).order_by("pk")


def read_targets(messages: Any) -> list[Target]:
    return [Target(*row) for row in messages.values_list(*Target._fields)]


def read_streamed(ids: Sequence[int], using: str, state: Status, *, lock: bool = False) -> list[Target]:
    """Return the messages that streams have delivered, or that wait in them. A held message blocks its key."""
    messages = messages_with(ids, using)
    if state is Status.PROCESSED:
        return read_targets(messages.delivered_in_streams())
    targets = read_targets(messages.waiting_in_streams(lock=lock))
    return [target._replace(blocks_key=bool(target.partition)) for target in targets]


def lock_streamed(ids: Sequence[int], using: str, state: Status) -> list[Target]:
    """Lock the streams of messages that wait in them, and return these messages; none if relays keep the streams.

    For messages that streams have delivered, nothing needs a lock: relays do not look at them again.
    """
    if state is Status.PROCESSED:
        return read_streamed(ids, using, state)
    store = get_store(connections[using])
    if not store.streams:
        return []
    for publisher in get_settings().streamed:
        # Without a position there would be nothing to lock.
        if not (positions := StreamPosition.objects.using(using)).filter(publisher=publisher).exists():
            positions.bulk_create([StreamPosition(publisher=publisher)], ignore_conflicts=True)
    try:
        with transaction.atomic(using=using):
            store.limit_lock_waits(STREAM_PATIENCE)
            targets = read_streamed(ids, using, state, lock=True)
            store.limit_lock_waits(None)
    except OperationalError as error:
        if not shows_conflict(error):
            raise
        return []
    return targets


def lock_pending(messages: OutboxMessageQuerySet, using: str) -> list[Target]:
    """Lock the pending messages of a queryset that no relay is delivering, and return them."""
    messages = messages.pending()
    if connections[using].features.has_select_for_update_skip_locked:
        # A relay has locked the rows that it is delivering. Nothing is read without locking it: under SERIALIZABLE,
        # MySQL and MariaDB would share-lock the row, and a relay that has claimed it could not settle it.
        return _without_leases(read_targets(messages.select_for_update(skip_locked=True)), using)
    keyed: dict[str, set[int]] = {}
    for target in read_targets(messages.filter(partition__gt=0)):
        keyed.setdefault(target.publisher, set()).add(target.partition)
    store = get_store(connections[using])
    free = {(name, partition) for name, parts in keyed.items() for partition in store.lock_partitions(name, parts)}
    locked = read_targets(_without_leased(messages))
    return _without_leases(
        [target for target in locked if not target.partition or (target.publisher, target.partition) in free], using
    )


def _without_leases(targets: list[Target], using: str) -> list[Target]:
    """Leave out messages that relays handle outside of a transaction, and the others of their keys."""
    numbers = {target.id: lease_number(target.publisher, target.id, target.partition) for target in targets}
    leased = find_leased(using, numbers.values())
    return [target for target in targets if numbers[target.id] not in leased]


def _without_leased(messages: OutboxMessageQuerySet) -> OutboxMessageQuerySet:
    """Leave out messages without a key that a relay may have leased, on a database without row locks.

    A relay moves the time of a message that it leases ahead by at most `CLAIM_TIMEOUT` of its publisher. Messages that
    wait for such a short time anyway look the same, and are left out too.
    """
    now = read_clock(messages.db)
    settings = get_settings()
    for publisher in settings.publishers:
        until = now + datetime.timedelta(seconds=settings.claim_timeouts.get(publisher, settings.claim_timeout))
        messages = messages.exclude(Q(publisher=publisher, partition=0, available_at__gt=now, available_at__lte=until))
    return messages
