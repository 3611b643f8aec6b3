"""HTTP: publishes each message as a webhook, signed as Standard Webhooks."""

from django_outbox.brokers.http.publisher import HTTPPublisher

__all__ = ["HTTPPublisher"]
