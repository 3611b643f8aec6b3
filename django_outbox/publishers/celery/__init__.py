"""Celery: sends stored task messages to the broker of a Celery app."""

from django_outbox.publishers.celery.publisher import CeleryPublisher

__all__ = ["CeleryPublisher"]
