"""The time on a database's clock."""

import datetime

from django.db.models import Max
from django.db.models.functions import Coalesce

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import Heartbeat


def read_clock(using: str) -> datetime.datetime:
    """Return the time on the database's clock."""
    # Also where the table has no row: the aggregate is NULL then, and the second argument is the result.
    clock = Heartbeat.objects.using(using).aggregate(now=Coalesce(Max(DatabaseNow()), DatabaseNow()))
    now: datetime.datetime = clock["now"]
    return now
