"""Workers: each delivers the messages of one publisher, until the relay stops or nothing is due."""

import time
from contextlib import closing
from typing import NamedTuple

from django_outbox.brokers.publisher import Publisher
from django_outbox.relay.batch import DeliveryResult
from django_outbox.relay.breakers import Permit
from django_outbox.relay.delivery import Delivery, make_source, require_none_refused, unavailable
from django_outbox.relay.state import RelayState
from django_outbox.service.outages import Outage
from django_outbox.service.running import restart_on_crash


class Attempt(NamedTuple):
    """The result of an attempt to deliver a batch.

    Args:
        wait: seconds until the next one.
        caught_up: whether it has settled all that was due, so that the next one would find nothing.
    """

    wait: float = 0.0
    found_nothing: bool = False
    caught_up: bool = False
    paused: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether to wait for `Worker.idle_wait`, not for `wait`, until the next one."""
        return self.found_nothing or self.caught_up


class Worker:
    """Delivers the messages of one publisher in the calling thread, a batch at a time.

    Args:
        reads_log: whether it works long enough to read the database's log.
    """

    def __init__(self, publisher: Publisher, state: RelayState, *, reads_log: bool = False) -> None:
        self.source = make_source(publisher, state, reads_log=reads_log)
        self.delivered = 0
        self._alias = publisher.alias
        self._state = state
        self._limits = state.limits
        self._delivery = Delivery(publisher, self.source, state)
        self._empty_claims = self._database_failures = 0
        self._growth = 2.0  # of idle waits
        self._looked_at = 0.0
        self._database_outage: Outage | None = None

    def close(self) -> None:
        self.source.close()
        self._delivery.close()

    @property
    def outage(self) -> Outage | None:
        """The outage in progress, of the database or of the publisher."""
        return self._database_outage or self._state.breakers.find_outage(self._alias)

    @property
    def lasting_outage(self) -> Outage | None:
        """The outage that a drain does not wait for, because too many attempts in a row have met it."""
        # Other workers may have met the outages of the publisher.
        if self._state.breakers.count_outages(self._alias) >= self._limits.drain_patience:
            return self._state.breakers.find_outage(self._alias)
        return self._database_outage if self._database_failures >= self._limits.drain_patience else None

    def deliver(self) -> Attempt:
        """Deliver a batch if the publisher is not paused and its breaker permits it."""
        state = self._state
        state.pauses.refresh()
        if state.pauses.is_paused(self._alias):
            self._empty_claims = 0
            return Attempt(self._limits.pause_interval, paused=True)
        permit = state.breakers.admit(self._alias, state.batch_sizes[self._alias])
        if permit is None:
            return Attempt(max(state.breakers.seconds_until_trial(self._alias), self._limits.stop_delay))
        self._looked_at = time.monotonic()
        result = self._run(permit)
        self.delivered += result.tally.processed
        caught_up = result.settled_all and self.source.caught_up
        if not result.found_nothing:
            was_announced = state.settings.notify and self.source.table.store.can_wake and not self._empty_claims
            self._growth = 4.0 if was_announced and caught_up else 2.0
        self._empty_claims = self._empty_claims + 1 if result.found_nothing else int(caught_up)
        self._database_failures = self._database_failures + 1 if result.database_outage else 0
        self._database_outage = result.database_outage
        if result.looked:
            state.service.outages.end(state.service.database_subject)
        if result.tally.claimed == permit.size:
            # There is more, and another worker may be asleep.
            state.wake_ups.wake([self._alias])
        if result.database_outage:
            state.service.outages.note(result.database_outage)
            return Attempt(self._limits.database_wait.after(self._database_failures))
        return Attempt(result.wait, result.found_nothing, caught_up)

    def idle_wait(self) -> float:
        """Return the seconds to wait after an attempt that is idle: longer and longer while nothing is due."""
        if self.source.lags and not self.source.caught_up:
            return 0.0
        seconds = self._limits.first_idle_wait * self._growth ** min(self._empty_claims - 1, 16)
        return min(seconds, self.source.longest_wait(self._state.poll_interval))

    def pause(self, seconds: float) -> None:
        """Wait; after an empty claim, only until there is work."""
        began = time.monotonic()
        if not self._empty_claims:
            self._state.service.pause(seconds)
        elif self._state.wake_ups.wait(self._alias, self.source.wake_ups, seconds, self._looked_at):
            # Messages committed right after this wake-up may cause no other one, so look again soon.
            self._empty_claims = 0
            self.source.table.announce()
        # It waits longer while others poll. Tests of projects may freeze the clock.
        if max(seconds, time.monotonic() - began) >= self._limits.check_connection_after:
            self.check_connection()

    def check_connection(self) -> None:
        """Close a connection that the server has closed; the next query opens a new one."""
        self._delivery.check_connection()

    def _run(self, permit: Permit) -> DeliveryResult:
        result = DeliveryResult()
        try:
            result = self._delivery.run(permit.size, carefully=permit.unsettled > 0)
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
        if (result.obstacle or result.refused) and not result.tally.answered:
            self.source.rewind()
        return result


def keep_running(publisher: Publisher, state: RelayState) -> None:
    """Deliver until the relay stops, with a new worker whenever one crashes. Raises what `restart_on_crash` raises."""
    subject = state.name_worker(publisher.alias)
    restart_on_crash(lambda: _run(publisher, state), subject, state.service, state.limits.restart_wait)


def _run(publisher: Publisher, state: RelayState) -> None:
    with closing(Worker(publisher, state, reads_log=True)) as worker:
        while not state.is_done():
            attempt = worker.deliver()
            worker.pause(worker.idle_wait() if attempt.is_idle else attempt.wait)
    # After `max_messages`, others may be waiting for work.
    state.service.stop()


def drain(publisher: Publisher, state: RelayState, deadline: float) -> None:
    """Deliver until nothing is due.

    Raises:
        RelayUnavailable: the broker or the database was unavailable too often in a row, or nothing was delivered
            because of an outage when the time ran out, or the database refuses to change a message.
    """
    with closing(Worker(publisher, state)) as worker:
        while not state.is_done() and time.monotonic() < deadline:
            attempt = worker.deliver()
            if (outage := worker.lasting_outage) and not state.is_done():
                raise unavailable(publisher.alias, outage)
            wait = attempt.wait
            if attempt.found_nothing:
                drained = worker.source.exhausted
                # A drain may end only after a sweep that finds nothing, and an idle worker has time for one.
                worker.source.sweep_next()
                if drained:
                    require_none_refused(publisher.alias, state)
                    return
                wait = state.limits.first_idle_wait if worker.source.complete else 0.0
            if attempt.paused:
                return
            worker.pause(min(wait, deadline - time.monotonic()))
        if (outage := worker.outage) and not worker.delivered and not state.is_done():
            # An outage must not look like success.
            raise unavailable(publisher.alias, outage)
