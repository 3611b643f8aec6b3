"""The brokers, each in a folder with its publisher and its consumer, and what they share.

A publisher that you write derives from `Publisher`, a consumer from `Consumer`. `docs/contributing/add-a-broker.md`
lists what the shared modules do for a broker of this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_outbox.brokers.consumer import Consumer, Incoming, Unavailable
    from django_outbox.brokers.publisher import BatchRefused, Publisher

__all__ = ["BatchRefused", "Consumer", "Incoming", "Publisher", "Unavailable"]

_OF_CONSUMERS = ("Consumer", "Incoming", "Unavailable")


def __getattr__(name: str) -> Any:
    # A publisher needs neither a consumer nor Django, so the names are imported when they are first used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'consumer' if name in _OF_CONSUMERS else 'publisher'}"), name)
