"""Monitoring: the figures of an outbox, and the pages and metrics that show them."""

from django_outbox.monitoring.figures import Level, Status, Verdict
from django_outbox.monitoring.status import status

__all__ = ["Level", "Status", "Verdict", "status"]
