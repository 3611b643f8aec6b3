"""Messages that a relay is delivering without having locked their rows."""

import datetime

from django.db import connections
from django.db.models import Q

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessageQuerySet
from django_outbox.stores.clock import read_clock


def without_leased(messages: OutboxMessageQuerySet) -> OutboxMessageQuerySet:
    """Leave out messages without a key that a relay may have leased; elsewhere, a relay has locked their rows.

    A relay moves the time of a message that it leases ahead by at most `CLAIM_TIMEOUT` of its publisher. Messages that
    wait for such a short time anyway look the same, and are left out too.
    """
    if connections[messages.db].features.has_select_for_update_skip_locked:
        return messages
    now = read_clock(messages.db)
    settings = get_settings()
    for alias in settings.publishers:
        until = now + datetime.timedelta(seconds=settings.claim_timeout_of(alias))
        messages = messages.exclude(Q(publisher=alias, partition=0, available_at__gt=now, available_at__lte=until))
    return messages
