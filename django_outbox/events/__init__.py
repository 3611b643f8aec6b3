"""Typed events: `enqueue` takes instances of classes, and handlers get them back.

    from django_outbox.events import event

    @event("order.created", version=1, key="order-{id}")
    @dataclass(frozen=True)
    class OrderCreated:
        id: int
        total: Decimal

    enqueue(OrderCreated(id=order.id, total=order.total))

Events are discovered in the module `events` of each installed app.
"""

from typing import TYPE_CHECKING

from django_outbox.utils.lazy import lazily

if TYPE_CHECKING:
    from django_outbox.events.recording import RecordsEvents
    from django_outbox.events.registry import decode_event, event, upgrade

__all__ = ["RecordsEvents", "decode_event", "event", "upgrade"]

# Some of them need models, which cannot be imported while apps are loaded; others may be needed at that time.
__getattr__ = lazily(__name__, {"recording": ["RecordsEvents"], "registry": ["decode_event", "event", "upgrade"]})
