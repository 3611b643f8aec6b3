"""System checks of the consumers.

`django_outbox.conf` finds E035, `django_outbox.inbox.registry` E036 to E039, and this module W036.
"""

import datetime
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning, register

from django_outbox.brokers.consumer import Consumer
from django_outbox.checks import TAG
from django_outbox.conf import SettingsProblem, parse
from django_outbox.inbox.registry import build_consumer

MIN_RETENTION = datetime.timedelta(days=1)
"""Shortest retention without a warning: a message may come again as long after it was handled as an outage lasts."""


@register(TAG)
def check_consumers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that every consumer can be constructed, and that it recognizes messages that come again."""
    settings, _ = parse(getattr(django_settings, "OUTBOX", None))
    if settings is None:
        return []
    found: list[CheckMessage] = []
    for alias, config in settings.consumers.items():
        try:
            consumer = build_consumer(alias, config, settings.publishers)
        except SettingsProblem as problem:
            found.append(Error(problem.message, hint=problem.hint, id=f"django_outbox.{problem.check_id}"))
        else:
            found += _check_retention(consumer, settings.retention)
    return found


def _check_retention(consumer: Consumer, retention: datetime.timedelta | None) -> list[CheckMessage]:
    if consumer.remember or retention is None or retention >= MIN_RETENTION:
        return []
    return [
        Warning(
            f"OUTBOX['CONSUMERS'][{consumer.alias!r}] recognizes a message that comes again by its row, but "
            f"OUTBOX['RETENTION'] deletes that row {retention} after the message was handled.",
            hint="If the broker delivers the message again later than that, it is handled twice. Set the consumer's "
            "option remember to True, or RETENTION to at least a day.",
            id="django_outbox.W036",
        )
    ]
