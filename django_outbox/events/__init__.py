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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_outbox.events.recording import RecordsEvents
    from django_outbox.events.registry import decode_event, event, upgrade

__all__ = ["RecordsEvents", "decode_event", "event", "upgrade"]

_MODULE_OF = {
    "RecordsEvents": "recording",
    "decode_event": "registry",
    "event": "registry",
    "upgrade": "registry",
}


def __getattr__(name: str) -> Any:
    # Some of them need models, which cannot be imported while apps are loaded; others may be needed at that time.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django_outbox.utils.lazy import import_name  # noqa: PLC0415 - importing the package imports nothing else

    return import_name(f"{__name__}.{_MODULE_OF[name]}", name)
