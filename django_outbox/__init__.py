"""A transactional outbox for Django.

    enqueue() -> OutboxMessage row -> claim -> publish -> settle -> (retention)
                 the caller's txn     |------ the relay's txn ------|

`enqueue` writes a message in the caller's transaction; a relay (`manage.py run_outbox`, or a Celery schedule) claims
what is due, publishes it to a broker and settles what became of it.

    from django_outbox import enqueue

    with transaction.atomic():
        order.save()
        enqueue("order.created", {"id": order.id}, key=f"order-{order.id}")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_outbox.exceptions import InvalidMessage, OutboxError, TransactionRequired
    from django_outbox.models import OutboxMessage
    from django_outbox.producing import enqueue, enqueue_many

__all__ = ["InvalidMessage", "OutboxError", "OutboxMessage", "TransactionRequired", "enqueue", "enqueue_many"]

_HOMES = {
    "InvalidMessage": "exceptions",
    "OutboxError": "exceptions",
    "OutboxMessage": "models",
    "TransactionRequired": "exceptions",
    "enqueue": "producing",
    "enqueue_many": "producing",
}


def __getattr__(name: str) -> Any:
    # Django imports this package before models may be imported, so the names are fetched at their first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
