"""What the log says of the life of a relay."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from django.db import DatabaseError, InterfaceError

from django_outbox.brokers.outcomes import describe_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.deployment import find_unknown_publishers
from django_outbox.logs import logger
from django_outbox.relay.state import RelayState
from django_outbox.service import announcements
from django_outbox.service.announcements import Life
from django_outbox.threads import own_connection
from django_outbox.wording import counted


def announcing(
    state: RelayState, publishers: Sequence[Publisher], workers: int, *, level: int = logging.INFO
) -> AbstractContextManager[None]:
    """Log the start of a relay, a line at intervals until the end of the block, and its end with totals.

    Args:
        state: what the workers of the relay share.
        publishers: the publishers that are served.
        workers: number of threads for each publisher.
        level: the level of the start and the end.
    """

    def read() -> dict[str, int]:
        tally = state.budget.tally
        return {"delivered": tally.processed, "will be retried": tally.retried, "failed": tally.failed}

    def begin() -> None:
        if level >= logging.INFO:
            _warn_of_unknown_publishers(state.using)

    served = ", ".join(f"publisher {each.alias!r} ({describe_publisher(each)})" for each in publishers)
    setup = f"{served}; {counted(workers, 'worker')} each"
    life = Life("Relay", setup, read, busy="delivering", idle="nothing delivered", begin=begin)
    return announcements.announcing(life, state, level=level)


def _warn_of_unknown_publishers(using: str) -> None:
    # The workers report a database that cannot be used.
    with suppress(DatabaseError, InterfaceError), own_connection(using):
        for alias in find_unknown_publishers(using):
            logger.warning(
                "The database %r has pending messages of the publisher %r, which is not in OUTBOX['PUBLISHERS']. No "
                "relay delivers them until it is.",
                using,
                alias,
            )
