"""The admin of messages, registered by Django's autodiscovery."""

from django_outbox.admin.messages import OutboxMessageAdmin
from django_outbox.admin.overview import OverviewAdmin

__all__ = ["OutboxMessageAdmin", "OverviewAdmin"]
