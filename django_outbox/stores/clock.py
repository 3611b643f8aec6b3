"""The time on the clock of a database, and on one of this machine that never stands still."""

import datetime
import time
from collections.abc import Callable
from functools import partial

from django.db.models import Max
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import Heartbeat

boot_time: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Returns the seconds of a clock that goes on while the process is stopped, and on Linux while the machine is."""

SLOT = datetime.timedelta(seconds=10)
"""The period of the counts of which the last six are "the last minute"."""

MINUTE = datetime.timedelta(minutes=1)


def read_clock(using: str, time: Combinable = DatabaseNow()) -> datetime.datetime:  # noqa: B008 - never changes
    """Return the time on the database's clock, or another time that is computed of it."""
    # Also where the table has no row: the aggregate is NULL then, and the second argument is the result.
    clock = Heartbeat.objects.using(using).aggregate(now=Coalesce(Max(time), time))
    now: datetime.datetime = clock["now"]
    return now


def floor(time: datetime.datetime, period: datetime.timedelta) -> datetime.datetime:
    """Return the beginning of the period that a time is in; periods are counted from midnight."""
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return time - (time - midnight) % period
