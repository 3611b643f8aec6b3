"""Divide messages into requests within the limits of the API."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django_outbox.brokers.aws.encoding import Entry

MAX_ENTRIES = 10
"""Maximum number of messages of a request:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html"""


class Request(NamedTuple):
    """One batch request.

    Args:
        destination: the queue or topic, as the template names it.
        indexes: the indexes of its messages in the call of `publish`, by the `Id` of their entries.
        entries: its messages.
    """

    destination: str
    indexes: dict[str, int]
    entries: list[dict[str, Any]]


def make_requests(entries: Mapping[int, Entry], max_bytes: int) -> list[Request]:
    """Divide messages into requests for their destinations, in their order.

    Args:
        entries: the messages, by their index in the call of `publish`; none of them larger than `max_bytes`.
        max_bytes: maximum number of bytes of a request.
    """
    by_destination: dict[str, list[tuple[int, Entry]]] = {}
    for index, entry in entries.items():
        by_destination.setdefault(entry.destination, []).append((index, entry))
    return [request for each in by_destination.items() for request in _divide(*each, max_bytes)]


def _divide(destination: str, entries: Iterable[tuple[int, Entry]], max_bytes: int) -> Iterator[Request]:
    request, size = Request(destination, {}, []), 0
    for index, entry in entries:
        if len(request.entries) == MAX_ENTRIES or (request.entries and size + entry.size > max_bytes):
            yield request
            request, size = Request(destination, {}, []), 0
        entry.fields["Id"] = id = str(len(request.entries))
        request.indexes[id] = index
        request.entries.append(entry.fields)
        size += entry.size
    if request.entries:
        yield request
