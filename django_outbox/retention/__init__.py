"""Retention: messages that are no longer needed are deleted, and archived before if the settings ask for it."""

from django_outbox.retention.discarding import discard

__all__ = ["discard"]
