"""The search of the admin's list: by ID, message ID or key; and patterns of types and error classes."""

import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import connections

from django_outbox.admin.states import LIMIT, ORDER
from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.deployment import publishers_in_use
from django_outbox.models import MAX_NAME_LENGTH, OutboxMessageQuerySet, Status


class Found(NamedTuple):
    """Ids of the messages that were found, the last enqueued first; `complete` if all messages were looked at."""

    ids: list[int]
    complete: bool


def find(messages: OutboxMessageQuerySet, text: str) -> Found:
    """Return the messages with this ID, message ID or key.

    An index leads to the messages of a key that are pending or block it. Of other failed messages, and of processed
    ones, only the newest `LIMIT` each are searched for the key.
    """
    text = text.strip()
    found: set[int] = set()
    complete = True
    if identity := read_identity(text):
        found.update(messages.filter(**identity).order_by("pk").values_list("pk", flat=True))
    if is_possible_key(text):
        for part in _parts_with_key(messages, text):
            rows = list(part.values_list("pk", "key")[: LIMIT + 1])
            complete = complete and len(rows) <= LIMIT
            found.update(pk for pk, key in rows[:LIMIT] if key == text)
    return Found(sorted(found, reverse=True)[:LIMIT], complete and len(found) <= LIMIT)


def _parts_with_key(messages: OutboxMessageQuerySet, key: str) -> "list[OutboxMessageQuerySet]":
    partition = partition_of(key)
    # Removed publishers may have pending messages as well.
    publishers = sorted({*get_settings().publishers, *publishers_in_use(messages)})
    # In no order: MariaDB might prefer an index without it, and sort.
    parts = [of_partition(messages, publisher, partition) for publisher in publishers]
    parts.append(messages.failed().order_by(*ORDER[Status.FAILED]))
    parts.append(messages.processed().order_by(*ORDER[Status.PROCESSED]))
    return parts


def of_partition(messages: OutboxMessageQuerySet, publisher: str, partition: int) -> OutboxMessageQuerySet:
    """Return the messages of a partition that are pending, or block their key; an index orders them by id."""
    queue = messages.filter(publisher=publisher, partition=partition, blocks_key=True)
    if not connections[messages.db].features.supports_partial_indexes:
        queue = queue.filter(processed_at=None)
    return queue


def read_identity(text: str) -> dict[str, Any]:
    """Return the field that a search term identifies, `id` or `message_id`, with its value; empty if neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 20:
        return {"id": int(text)}
    try:
        return {"message_id": uuid.UUID(text)}
    except ValueError:
        return {}


def is_possible_key(text: str) -> bool:
    """Return whether a message can have this key."""
    return 0 < len(text.encode("utf-8", "replace")) <= MAX_NAME_LENGTH and "\x00" not in text


def pattern(text: str) -> Callable[[str], bool]:
    """Return a function that returns whether a text is the given one, in which `*` stands for any characters."""
    parts = map(re.escape, text.split("*"))
    expression = re.compile(".*".join(parts), re.DOTALL)
    return lambda value: expression.fullmatch(value) is not None


def part(text: str) -> Callable[[str], bool]:
    """Return a function that returns whether a text contains the given one, in which `*` stands for any characters.

    Upper and lower case differ only if the given text has an upper-case letter.
    """
    flags = re.DOTALL if text != text.lower() else re.DOTALL | re.IGNORECASE
    expression = re.compile(".*".join(map(re.escape, text.split("*"))), flags)
    return lambda value: expression.search(value) is not None
