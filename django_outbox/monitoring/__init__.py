"""Monitoring: the figures of an outbox, and the faces that show them."""

from django_outbox.monitoring.status import status
from django_outbox.monitoring.types import Level, Status, Verdict

__all__ = ["Level", "Status", "Verdict", "status"]
