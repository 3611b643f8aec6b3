"""Restart what crashes, because an error must not affect other work of the process."""

import time
from collections.abc import Callable
from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_outbox.exceptions import OutboxError
from django_outbox.logs import logger
from django_outbox.retry import Backoff
from django_outbox.service.state import ServiceState
from django_outbox.text import describe


def restart_on_crash(work: Callable[[], None], subject: str, state: ServiceState, wait: Backoff) -> None:
    """Call a function until it returns, again after each exception. The thread's connection is closed in between.

    The waits between two calls begin again once a call has lasted twice the longest one.

    Raises:
        ImproperlyConfigured: the settings are wrong. All threads stop, because a restart would not help.
        OutboxError: for example, the outbox's table is missing. All threads stop.
    """
    crashes = 0
    while True:
        began = time.monotonic()
        try:
            return work()
        except (ImproperlyConfigured, OutboxError):
            state.stopping = True
            raise
        except BaseException as error:
            if time.monotonic() - began > 2 * wait.max_delay:
                crashes = 0
            crashes += 1
            seconds = wait.after(crashes)
            logger.error(
                "%(subject)s crashed and restarts in %(seconds).1f s: %(reason)s",
                exc_info=error,
                event="process.thread_crashed",
                subject=subject,
                seconds=seconds,
                reason=describe(error),
            )
            with suppress(Exception):
                connections[state.using].close()
        state.pause(seconds)
