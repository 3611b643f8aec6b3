"""Celery: sends stored task messages to the broker of a Celery app."""

from django_outbox.brokers.celery.publisher import CeleryPublisher

__all__ = ["CeleryPublisher"]
