"""Messages that a relay is delivering on a database without row locks."""

import datetime

from django.db import connections
from django.db.models import Q

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessageQuerySet
from django_outbox.stores.clock import read_clock


def without_leased(messages: OutboxMessageQuerySet) -> OutboxMessageQuerySet:
    """Leave out messages without a key that a relay may have leased; elsewhere, a relay has locked their rows.

    A relay moves the time of a message that it leases ahead by at most `CLAIM_TIMEOUT`. Messages that wait for such a
    short time anyway look the same, and are left out too.
    """
    if connections[messages.db].features.has_select_for_update_skip_locked:
        return messages
    now = read_clock(messages.db)
    until = now + datetime.timedelta(seconds=get_settings().claim_timeout)
    return messages.exclude(Q(partition=0, available_at__gt=now, available_at__lte=until))
