"""A check for `django-health-check`."""

import dataclasses

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from django_outbox.monitoring.figures import Level
from django_outbox.monitoring.readings import default_databases, read

__all__ = ["Outbox"]


@dataclasses.dataclass
class Outbox(HealthCheck):
    """Fails if the outbox does not deliver. Its report contains codes of verdicts and aliases of publishers only.

    Args:
        database: the database alias; by default the one that the router chooses for writing.
        warnings: whether verdicts that are warnings fail the check, too.
    """

    database: str | None = None
    warnings: bool = dataclasses.field(default=False, repr=False)

    def run(self) -> None:
        """Read the figures.

        Raises:
            ServiceUnavailable: a verdict is critical.
            ServiceWarning: a verdict is a warning, and `warnings` is set.
        """
        [using] = [self.database] if self.database else default_databases()
        reading = read(using)
        limit = Level.WARNING if self.warnings else Level.CRITICAL
        if reading.level >= limit:
            problem = ServiceUnavailable if reading.level == Level.CRITICAL else ServiceWarning
            raise problem(
                ", ".join(
                    f"{each.code} ({each.publisher or using})" for each in reading.verdicts if each.level >= limit
                )
            )
