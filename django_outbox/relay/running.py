"""Work until the relay stops, through unexpected errors."""

import time
from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_outbox.error_text import describe
from django_outbox.exceptions import OutboxError
from django_outbox.logs import logger
from django_outbox.publishers.base import Publisher
from django_outbox.relay.shared import Shared
from django_outbox.relay.worker import Worker


class RunningWorker(Worker):
    """Works until the relay stops, and waits longer and longer while nothing is due."""

    def _is_done(self) -> bool:
        return self._shared.is_done()

    def _wait_when_idle(self) -> float:
        doublings = min(self._empty_claims - 1, 16)
        return min(self._limits.first_idle_wait * 2.0**doublings, self._shared.poll_interval)


def keep_running(publisher: Publisher, shared: Shared) -> None:
    """Run a worker, and a new one whenever it crashes, because an error must not affect other publishers.

    Raises:
        ImproperlyConfigured: the settings are wrong. The relay stops, because a restart would not help.
        OutboxError: for example, the outbox's table is missing. The relay stops.
    """
    crashes = 0
    while True:
        began = time.monotonic()
        try:
            return RunningWorker(publisher, shared).work()
        except (ImproperlyConfigured, OutboxError):
            shared.stopping = True
            raise
        except BaseException as error:
            if time.monotonic() - began > 2 * shared.limits.restart_wait.max_delay:
                crashes = 0
            crashes += 1
            seconds = shared.limits.restart_wait.after(crashes)
            logger.error(
                "Publisher %r: a worker crashed and restarts in %.1f s: %s",
                publisher.alias,
                seconds,
                describe(error),
                exc_info=error,
            )
            with suppress(Exception):
                connections[shared.using].close()
        shared.pause(seconds)
