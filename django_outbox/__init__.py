"""A transactional outbox for Django.

    enqueue() -> OutboxMessage row -> claim -> publish -> settle -> (retention)
                 the caller's txn     |------ the relay's txn ------|

`enqueue` writes a message in the caller's transaction. A relay (`manage.py run_outbox`, or a Celery schedule) claims
the due messages, publishes them to a broker and settles them: it writes each message's new state. On SQLite a claim is
a lease instead of an open transaction, because a transaction would lock the whole database.

    from django_outbox import enqueue

    with transaction.atomic():
        order.save()
        enqueue("order.created", {"id": order.id}, key=f"order-{order.id}")
"""

from typing import TYPE_CHECKING

from django_outbox.utils.lazy import lazily

if TYPE_CHECKING:
    from django_outbox.enqueueing.attribution import attributed
    from django_outbox.enqueueing.enqueue import enqueue, enqueue_many
    from django_outbox.exceptions import InvalidMessage, OutboxError, TransactionRequired
    from django_outbox.models import OutboxMessage

__all__ = [
    "InvalidMessage",
    "OutboxError",
    "OutboxMessage",
    "TransactionRequired",
    "attributed",
    "enqueue",
    "enqueue_many",
]

# Django imports this package before models can be imported.
__getattr__ = lazily(
    __name__,
    {
        "enqueueing.attribution": ["attributed"],
        "enqueueing.enqueue": ["enqueue", "enqueue_many"],
        "exceptions": ["InvalidMessage", "OutboxError", "TransactionRequired"],
        "models": ["OutboxMessage"],
    },
)
