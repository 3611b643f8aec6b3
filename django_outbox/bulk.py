"""Change many messages in batches."""

from collections.abc import Iterable, Iterator

BATCH_SIZE = 1000
"""Number of rows that one statement reads or changes: few enough to hold locks for milliseconds only."""


def batches(ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield ids in lists of `BATCH_SIZE`, in their order.

    Messages of a key are in that order, and the first ones may be delivered before the last ones are changed.
    """
    ordered = sorted(ids)
    for start in range(0, len(ordered), BATCH_SIZE):
        yield ordered[start : start + BATCH_SIZE]
