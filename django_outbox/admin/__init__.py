"""The admin of messages, registered by Django's autodiscovery."""

from django_outbox.admin.messages import OutboxMessageAdmin

__all__ = ["OutboxMessageAdmin"]
