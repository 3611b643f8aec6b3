"""The state that the workers of a relay share."""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass

from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import OutboxSettings
from django_outbox.relay.breakers import Breakers
from django_outbox.relay.conflicts import Turns
from django_outbox.relay.limits import Limits
from django_outbox.relay.pauses import Pauses
from django_outbox.relay.tally import Budget
from django_outbox.relay.wake_ups import WakeUps
from django_outbox.relay.watchdog import DatabaseCalls
from django_outbox.service.outages import Outages
from django_outbox.service.state import ServiceState


@dataclass
class RelayState(ServiceState):
    """The state that the workers of a relay share.

    Args:
        using: the database alias.
        settings: the checked settings.
        limits: the waits and limits.
        batch_sizes: maximum number of messages in one claim, by publisher.
        poll_interval: longest idle wait in seconds.
        budget: counts the messages of all workers, and how many they may still claim together.
        breakers: the publishers' circuit breakers.
        pauses: what operators have paused.
        outages: the brokers and databases that are unavailable.
        turns: taken by the workers of a publisher while its handlers conflict with each other.
        wake_ups: ends the idle waits of workers.
        database_calls: the claims and settlements in progress.
        dead_letters: the dead-letter publisher, if there is one.
    """

    using: str
    settings: OutboxSettings
    limits: Limits
    batch_sizes: Mapping[str, int]
    poll_interval: float
    budget: Budget
    breakers: Breakers
    pauses: Pauses
    outages: Outages
    turns: Mapping[str, Turns]
    wake_ups: WakeUps
    dead_letters: Publisher | None
    database_calls: DatabaseCalls

    def is_done(self) -> bool:
        """Return whether no further batch may begin: the relay is stopping, or `max_messages` are settled."""
        return self.stopping or self.budget.spent

    def wait_for_work(self, wake_ups: Set[str], seconds: float) -> bool:
        """Wait for a wake-up with one of these names, or until the relay is stopping; return whether there was one."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            if self.wake_ups.wait(wake_ups, min(left, self.limits.stop_delay)):
                return True
        return False
