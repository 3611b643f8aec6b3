"""Run the threads of a relay or an inbox: restart one that crashes, and stop them in time."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_outbox.exceptions import OutboxError, RelayUnavailable
from django_outbox.retry import Backoff
from django_outbox.service.state import ServiceState
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe
from django_outbox.utils.threads import Threads, own_connection


def run_in_threads(works: Sequence[Callable[[], object]], service: str, state: ServiceState, patience: float) -> None:
    """Do the works in threads, each with its own database connection, while this thread waits.

    An exception that interrupts this thread (Ctrl-C, Celery's soft time limit) does not reach the current batches. They
    are finished first, unless they take longer than `patience` or the wait for them is interrupted, too.

    Raises:
        RelayUnavailable: a broker or the database was unavailable. Any other error of a thread is raised first.
    """
    threads = Threads(state.stop_requests)
    try:
        for work in works:
            threads.start(own_connection(state.using)(work), name=f"outbox-{service}")
        if not threads.wait(until=lambda: state.stopping):
            state.stop()
            threads.wait()
    except BaseException:
        state.abandoned = True
        state.stop()
        state.abandoned = not threads.wait(patience)
        if state.abandoned:
            logger.warning(
                "The current batches were not finished within %(seconds)g s.",
                event="process.batches_unfinished",
                service=service,
                database=state.using,
                seconds=patience,
            )
        raise
    if threads.errors:
        raise min(threads.errors, key=lambda error: isinstance(error, RelayUnavailable))


def restart_on_crash(work: Callable[[], None], subject: str, state: ServiceState, wait: Backoff) -> None:
    """Call a function until it returns or the process stops, again after each exception.

    The thread's connection is closed in between.

    Raises:
        ImproperlyConfigured: the settings are wrong. All threads stop, because a restart would not help.
        OutboxError: for example, the outbox's table is missing. All threads stop.
    """
    while not state.stopping:
        try:
            work()
        except (ImproperlyConfigured, OutboxError):
            state.stopping = True
            raise
        except BaseException as error:
            state.pause(note_crash(error, subject, state, wait))
        else:
            return


def note_crash(error: BaseException, subject: str, state: ServiceState, wait: Backoff) -> float:
    """Log a crash, close the thread's connection, and return the seconds until the restart."""
    seconds = state.outages.note_crash(subject, describe(error), wait)
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
    return seconds
