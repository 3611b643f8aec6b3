"""Divide messages into requests within the limits of the API."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from django_outbox.publishers.aws.encoding import Entry

MAX_ENTRIES = 10
"""Maximum number of messages of a request:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html"""


class Request(NamedTuple):
    """One batch request.

    Args:
        destination: the queue or topic, as the template names it.
        entries: its messages.
    """

    destination: str
    entries: tuple[Entry, ...]


def make_requests(destination: str, entries: Iterable[Entry], max_bytes: int) -> Iterator[Request]:
    """Divide the messages for a destination into requests, in their order.

    Args:
        destination: the queue or topic.
        entries: the messages, none of them larger than `max_bytes`.
        max_bytes: maximum number of bytes of a request.
    """
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if len(part) == MAX_ENTRIES or (part and size + entry.size > max_bytes):
            yield Request(destination, tuple(part))
            part, size = [], 0
        entry.fields["Id"] = str(len(part))
        part.append(entry)
        size += entry.size
    if part:
        yield Request(destination, tuple(part))
