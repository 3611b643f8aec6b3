"""Workers: each is one loop that delivers the messages of one publisher, until the relay stops or nothing is due."""

import abc
import time
from typing import ClassVar

from django_outbox.brokers.publisher import Publisher
from django_outbox.relay.batch import DeliveryResult
from django_outbox.relay.breakers import Permit
from django_outbox.relay.delivery import Delivery, make_source, unavailable
from django_outbox.relay.state import RelayState
from django_outbox.service.outages import Outage
from django_outbox.service.running import restart_on_crash


class Worker(abc.ABC):
    """Delivers the messages of one publisher in the calling thread, batch after batch.

    Its subclasses decide when it is done, and how long it waits when nothing is due.
    """

    reads_log: ClassVar[bool] = False
    """Whether it works long enough to read the database's log."""

    def __init__(self, publisher: Publisher, state: RelayState) -> None:
        self._alias = publisher.alias
        self._database = state.database_subject
        self._state = state
        self._limits = state.limits
        self._source = make_source(publisher, state, reads_log=self.reads_log)
        self._delivery = Delivery(publisher, self._source, state)
        self._delivered = 0
        self._empty_claims = 0
        self._database_failures = 0
        self._database_outage: Outage | None = None

    def work(self) -> None:
        try:
            while not self._is_done():
                self._pause(self.deliver())
        finally:
            self.close()

    def close(self) -> None:
        self._source.close()
        self._delivery.close()

    @abc.abstractmethod
    def _is_done(self) -> bool:
        """Return whether no further batch is to begin."""

    @abc.abstractmethod
    def _on_nothing_due(self) -> float:
        """Return the seconds to wait after a claim that found nothing."""

    def deliver(self) -> float:
        """Deliver a batch if the publisher is not paused and its breaker permits it; return the seconds to wait."""
        self._state.pauses.refresh()
        if self._state.pauses.is_paused(self._alias):
            self._empty_claims = 0
            return self._on_pause()
        permit = self._state.breakers.admit(self._alias, self._state.batch_sizes[self._alias])
        if permit is None:
            return self._on_open_breaker()
        result = self._run(permit)
        self._note(result)
        if result.tally.claimed == permit.size:
            # There is more, and another worker may be asleep.
            self._state.wake_ups.wake([self._alias])
        if result.database_outage:
            return self._on_database_outage(result.database_outage)
        return self._on_nothing_due() if self._is_idle(result) else result.wait

    def _is_idle(self, result: DeliveryResult) -> bool:
        """Return whether to wait before the next claim."""
        return result.found_nothing

    def _run(self, permit: Permit) -> DeliveryResult:
        result = DeliveryResult()
        try:
            result = self._delivery.run(permit.size)
        finally:
            self._state.breakers.note(
                self._alias,
                permit,
                outage=result.outage,
                delivered=result.tally.processed > 0,
                responds=result.broker_responds,
                published=result.published,
                unsettled=result.unsettled,
            )
        if result.obstacle and not result.tally.answered:
            self._source.rewind()
        return result

    def _note(self, result: DeliveryResult) -> None:
        self._delivered += result.tally.processed
        self._empty_claims = self._empty_claims + 1 if result.found_nothing else int(self._is_idle(result))
        self._database_failures = self._database_failures + 1 if result.database_outage else 0
        self._database_outage = result.database_outage
        if result.looked:
            self._state.outages.end(self._database)

    def _on_open_breaker(self) -> float:
        return max(self._state.breakers.seconds_until_trial(self._alias), self._limits.stop_delay)

    def _on_pause(self) -> float:
        return self._limits.pause_interval

    def _on_database_outage(self, outage: Outage) -> float:
        seconds = self._limits.database_wait.after(self._database_failures)
        self._state.outages.note(outage, seconds)
        return seconds

    def _pause(self, seconds: float) -> None:
        """Wait; after an empty claim, only until there is work."""
        if not self._empty_claims:
            self._state.pause(seconds)
        elif self._state.wait_for_work(self._source.wake_ups, seconds):
            # Messages committed right after this wake-up may cause no other one, so look again soon.
            self._empty_claims = 0
        if seconds >= self._limits.check_connection_after:
            self._delivery.check_connection()


class RunningWorker(Worker):
    """Works until the relay stops, and waits longer and longer while nothing is due."""

    reads_log = True

    def _is_done(self) -> bool:
        return self._state.is_done()

    def _is_idle(self, result: DeliveryResult) -> bool:
        return result.found_nothing or (result.settled_all and self._source.caught_up)

    def _on_nothing_due(self) -> float:
        if self._source.lags and not self._source.caught_up:
            return 0.0
        doublings = min(self._empty_claims - 1, 16)
        longest = min(self._state.poll_interval, self._source.longest_wait)
        return min(self._limits.first_idle_wait * 2.0**doublings, longest)


def keep_running(publisher: Publisher, state: RelayState) -> None:
    """Run a worker, and a new one whenever it crashes.

    Raises:
        ImproperlyConfigured: the settings are wrong. The relay stops.
        OutboxError: for example, the outbox's table is missing. The relay stops.
    """
    subject = state.name_worker(publisher.alias)
    restart_on_crash(lambda: RunningWorker(publisher, state).work(), subject, state, state.limits.restart_wait)


class DrainingWorker(Worker):
    """Works until nothing is due, or until the broker or the database has been unavailable several times in a row."""

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
        outage = self._database_outage or self._state.breakers.find_outage(self._alias)
        if outage and not self._drained and not self._delivered and not self._state.is_done():
            # An outage must not look like success.
            raise unavailable(self._alias, outage)

    def _is_done(self) -> bool:
        return self._drained or self._state.is_done() or time.monotonic() >= self._deadline

    def _on_nothing_due(self) -> float:
        self._drained = self._source.exhausted
        # A drain may end only after a sweep that finds nothing, and an idle worker has time for one.
        self._source.sweep_next()
        return self._limits.first_idle_wait if self._source.complete and not self._drained else 0.0

    def _run(self, permit: Permit) -> DeliveryResult:
        result = super()._run(permit)
        if not self._state.is_done():
            self._require_broker()
        return result

    def _on_open_breaker(self) -> float:
        # Other workers may have met the outages.
        self._require_broker()
        return super()._on_open_breaker()

    def _require_broker(self) -> None:
        outage = self._state.breakers.find_outage(self._alias)
        if outage and self._state.breakers.count_outages(self._alias) >= self._limits.drain_patience:
            raise unavailable(self._alias, outage)

    def _on_pause(self) -> float:
        self._drained = True
        return 0.0

    def _on_database_outage(self, outage: Outage) -> float:
        if self._database_failures >= self._limits.drain_patience:
            raise unavailable(self._alias, outage)
        return super()._on_database_outage(outage)

    def _pause(self, seconds: float) -> None:
        super()._pause(min(seconds, self._deadline - time.monotonic()))
