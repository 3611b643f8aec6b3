"""The publishers that messages in a database name."""

from collections.abc import Collection

from django.db import connections
from django.db.models import Min, Q

from django_outbox.models import OutboxMessage, OutboxMessageQuerySet

MAX_PUBLISHERS = 100
"""Maximum number of publishers that are looked for: each costs a short query."""


def publishers_in_use(messages: OutboxMessageQuerySet) -> list[str]:
    """Return the publishers of the pending messages, including those that were removed from the settings.

    It jumps through the index from one publisher to the next, with one query each. If the index is not partial, it also
    finds publishers with processed or failed messages only.
    """
    rows = messages.order_by()
    if connections[messages.db].features.supports_partial_indexes:
        rows = rows.pending()
    found: list[str] = []
    publisher = rows.aggregate(next=Min("publisher"))["next"]
    while publisher is not None and len(found) < MAX_PUBLISHERS:
        found.append(publisher)
        publisher = rows.filter(publisher__gt=publisher).aggregate(next=Min("publisher"))["next"]
    return found


def find_unknown_publishers(using: str, known: Collection[str]) -> list[str]:
    """Return the publishers that pending messages name and that are not known.

    Each query reads a few entries of an index, however many messages there are.
    """
    messages = OutboxMessageQuerySet(OutboxMessage, using=using)
    # Messages without a key, and with one: each has its index.
    parts = (Q(partition=0), Q(blocks_key=True, processed_at__isnull=True))
    return [
        alias
        for alias in publishers_in_use(messages)
        if alias not in known and any(messages.pending().filter(part, publisher=alias).exists() for part in parts)
    ]
