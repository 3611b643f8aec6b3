"""The publishers that have messages in the table."""

from django.db import connections
from django.db.models import Min

from django_outbox.models import OutboxMessageQuerySet

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
