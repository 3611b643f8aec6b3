"""Brokers: a room for each, with its publisher and its consumer, and what they share.

A publisher of your own derives from `Publisher`, a consumer from `Consumer`.
"""

from django_outbox.brokers.consumer import Consumer, Incoming, Refused, Unavailable
from django_outbox.brokers.publisher import BatchRefused, Publisher, TransactionalPublisher

__all__ = ["BatchRefused", "Consumer", "Incoming", "Publisher", "Refused", "TransactionalPublisher", "Unavailable"]
