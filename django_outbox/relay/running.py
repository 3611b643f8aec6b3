"""Work until the relay stops, through unexpected errors."""

from django_outbox.brokers.publisher import Publisher
from django_outbox.relay.state import RelayState
from django_outbox.relay.worker import Worker
from django_outbox.service.restarting import restart_on_crash


class RunningWorker(Worker):
    """Works until the relay stops, and waits longer and longer while nothing is due."""

    def _is_done(self) -> bool:
        return self._state.is_done()

    def _wait_when_idle(self) -> float:
        if self._source.lags:
            return 0.0
        doublings = min(self._empty_claims - 1, 16)
        return min(self._limits.first_idle_wait * 2.0**doublings, self._state.poll_interval)


def keep_running(publisher: Publisher, state: RelayState) -> None:
    """Run a worker, and a new one whenever it crashes.

    Raises:
        ImproperlyConfigured: the settings are wrong. The relay stops.
        OutboxError: for example, the outbox's table is missing. The relay stops.
    """
    subject = f"Publisher {publisher.alias!r}: a worker"
    restart_on_crash(lambda: RunningWorker(publisher, state).work(), subject, state, state.limits.restart_wait)
