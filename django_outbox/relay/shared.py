"""The part of a relay that its workers share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from django_outbox.conf import OutboxSettings
from django_outbox.publishers.base import Publisher
from django_outbox.relay.breakers import Breakers
from django_outbox.relay.budget import Budget
from django_outbox.relay.conflicts import Turns
from django_outbox.relay.counters import Counters
from django_outbox.relay.limits import Limits
from django_outbox.relay.outages import Outages
from django_outbox.relay.pauses import Pauses
from django_outbox.relay.wake_ups import WakeUps
from django_outbox.relay.watchdog import DatabaseCalls


@dataclass(slots=True)
class Shared:
    """The part of a relay that its workers share.

    Args:
        using: the database alias.
        settings: the checked settings.
        limits: the waits and limits.
        batch_sizes: maximum number of messages in one claim, by publisher.
        poll_interval: longest idle wait in seconds.
        budget: how many messages the workers may still claim together.
        breakers: the publishers' circuit breakers.
        pauses: what operators have paused.
        counters: counts the messages of each publisher.
        outages: the brokers and databases that are unavailable.
        turns: taken by the workers of a publisher while its handlers conflict with each other.
        wake_ups: ends the idle waits of workers.
        database_calls: the claims and settlements in progress.
        dead_letters: the dead-letter publisher, if there is one.
        stopping: whether the relay is stopping. It is a plain attribute because a signal handler may set it: an
            `Event` has a lock, which the interrupted thread may hold.
    """

    using: str
    settings: OutboxSettings
    limits: Limits
    batch_sizes: Mapping[str, int]
    poll_interval: float
    budget: Budget
    breakers: Breakers
    pauses: Pauses
    counters: Counters
    outages: Outages
    turns: Mapping[str, Turns]
    wake_ups: WakeUps
    dead_letters: Publisher | None
    database_calls: DatabaseCalls = field(default_factory=DatabaseCalls)
    stopping: bool = False

    @property
    def database(self) -> str:
        """The database as the subject of outages."""
        return f"Database {self.using!r}"

    def is_stopping(self) -> bool:
        """Return whether the relay is stopping."""
        return self.stopping

    def is_done(self) -> bool:
        """Return whether no further batch may begin: the relay is stopping, or `max_messages` are settled."""
        return self.stopping or self.budget.spent

    def pause(self, seconds: float) -> None:
        """Wait; return early if the relay is stopping."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.limits.stop_delay))

    def wait_for_work(self, publisher_alias: str, seconds: float) -> bool:
        """Wait until there is work for a publisher, or the relay is stopping; return whether there was a wake-up."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            if self.wake_ups.wait(publisher_alias, min(left, self.limits.stop_delay)):
                return True
        return False
