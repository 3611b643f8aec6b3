"""The brokers, each in a folder with its publisher and its consumer, and what they share.

A publisher that you write derives from `Publisher`, a consumer from `Consumer`. `docs/contributing/add-a-broker.md`
lists what the shared modules do for a broker of this package.
"""

from typing import TYPE_CHECKING

from django_outbox.utils.lazy import lazily

if TYPE_CHECKING:
    from django_outbox.brokers.consumer import Consumer, Incoming, Unavailable
    from django_outbox.brokers.publisher import BatchRefused, Publisher

__all__ = ["BatchRefused", "Consumer", "Incoming", "Publisher", "Unavailable"]

# A publisher needs neither a consumer nor Django.
__getattr__ = lazily(
    __name__, {"consumer": ["Consumer", "Incoming", "Unavailable"], "publisher": ["BatchRefused", "Publisher"]}
)
