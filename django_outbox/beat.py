"""A schedule for Celery beat, instead of `manage.py run_outbox`. It imports nothing of Django, as settings need it."""

import math
from typing import Any

__all__ = ["beat_schedule"]


def beat_schedule(*, drain_every: float = 5.0, purge_every: float = 3600.0, **drain: Any) -> dict[str, dict[str, Any]]:
    """Return entries for `CELERY_BEAT_SCHEDULE`.

    For example::

        CELERY_BEAT_SCHEDULE = {**beat_schedule(drain_every=2)}

    Args:
        drain_every: seconds between two runs of `drain_outbox`: about the longest that a message waits.
        purge_every: seconds between two runs of `purge_outbox`.
        drain: arguments of `drain_outbox`, for example `using="orders"` or `workers=2`.
    """
    database = {"using": drain["using"]} if "using" in drain else {}
    return {
        "django_outbox.drain": {
            "task": "django_outbox.tasks.drain_outbox",
            "schedule": drain_every,
            "kwargs": drain,
            # A run that no worker has started before the next one is due is superseded by it.
            "options": _expiring(drain_every),
        },
        "django_outbox.purge": {
            "task": "django_outbox.tasks.purge_outbox",
            "schedule": purge_every,
            "kwargs": database,
            "options": _expiring(purge_every),
        },
    }


def _expiring(seconds: float) -> dict[str, float]:
    # django-celery-beat 2.9 ignores `expires`. Celery sends `expire_seconds` as a property that no broker reads.
    return {"expires": seconds, "expire_seconds": math.ceil(seconds)}
