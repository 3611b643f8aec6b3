"""The numbers of the locks that stand for keys and partitions."""

import zlib
from collections.abc import Collection

from django_outbox.db.fields import partition_of

KEY_LOCKS = 1024
"""Number of locks that keys share, so that a transaction with 100,000 keys does not use up the server's locks."""

FIRST_PARTITION = 2**31
"""Separates the numbers of leased partitions from the numbers of slots."""


def lock_number(publisher: str, number: int) -> int:
    """Return the number of the `KeyLock` for one slot or partition of a publisher's keys.

    Args:
        publisher: the publisher's alias.
        number: the slot or partition, below 2**32.
    """
    return (1 + zlib.crc32(publisher.encode()) % 2**30) * 2**32 + number


def lease_number(publisher: str, id: int, partition: int) -> int:
    """Return the number of the `KeyLock` for the lease of a message: its partition's, or its own without a key."""
    return lock_number(publisher, FIRST_PARTITION + partition) if partition else -id


def key_lock_numbers(keys: Collection[str]) -> list[int]:
    """Return the numbers of the locks for these keys, in the order in which all transactions take them."""
    return sorted({partition_of(key) % KEY_LOCKS for key in keys if key})
