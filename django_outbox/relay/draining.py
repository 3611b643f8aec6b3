"""Work until nothing is due."""

import time

from django_outbox.brokers.publisher import Publisher
from django_outbox.relay.breaker import Permit
from django_outbox.relay.delivery import Attempt, unavailable
from django_outbox.relay.state import RelayState
from django_outbox.relay.worker import Worker


class DrainingWorker(Worker):
    """Works until nothing is due, or until the broker or the database has been unavailable several times in a row.

    Args:
        publisher: sends the messages.
        state: what the workers of the relay share.
        deadline: when to begin no further batch, on the monotonic clock.
    """

    def __init__(self, publisher: Publisher, state: RelayState, deadline: float) -> None:
        super().__init__(publisher, state)
        self._deadline = deadline
        self._drained = False

    def work(self) -> None:
        """Deliver until nothing is due.

        Raises:
            RelayUnavailable: the broker or the database was unavailable too often, or nothing was delivered because of
                an outage when the time ran out.
        """
        super().work()
        outage = self._database_outage or self._state.breakers.reason(self._alias)
        if outage and not self._drained and not self._delivered and not self._state.is_done():
            # An outage must not look like success.
            raise unavailable(self._alias, outage)

    def _is_done(self) -> bool:
        return self._drained or self._state.is_done() or time.monotonic() >= self._deadline

    def _wait_when_idle(self) -> float:
        self._drained = self._source.exhausted
        # A drain may end only after a sweep that finds nothing, and an idle worker has time for one.
        self._source.sweep_next()
        return self._limits.first_idle_wait if self._source.complete and not self._drained else 0.0

    def _attempt(self, permit: Permit) -> Attempt:
        attempt = super()._attempt(permit)
        if not self._state.is_done():
            self._require_broker()
        return attempt

    def _wait_for_broker(self) -> float:
        # The attempts may have been those of other workers.
        self._require_broker()
        return super()._wait_for_broker()

    def _require_broker(self) -> None:
        if self._state.breakers.count_outages(self._alias) >= self._limits.drain_patience:
            raise unavailable(self._alias, self._state.breakers.reason(self._alias))

    def _wait_while_paused(self) -> float:
        self._drained = True
        return 0.0

    def _wait_for_database(self) -> float:
        if self._database_outages >= self._limits.drain_patience:
            raise unavailable(self._alias, self._database_outage)
        return super()._wait_for_database()

    def _pause(self, seconds: float) -> None:
        super()._pause(min(seconds, self._deadline - time.monotonic()))
