"""A relay in the process of `runserver`, so that development needs one terminal."""

import atexit
import sys
import threading
from contextlib import suppress

from django.core.exceptions import ImproperlyConfigured

from django_outbox.conf import get_settings
from django_outbox.exceptions import OutboxError
from django_outbox.management.service import find_missing_schema, shown_log
from django_outbox.relay.relay import Relay
from django_outbox.utils.text import counted, one_line

STOP_TIMEOUT = 5.0
"""Seconds that the current batches may take when the server reloads or ends."""

MIGRATION_INTERVAL = 1.0
"""Seconds between two looks for missing tables."""


def start_relay(**_: object) -> None:
    """Deliver messages until the process ends, if `OUTBOX["DELIVER_IN_RUNSERVER"]` is set."""
    try:
        if not get_settings().deliver_in_runserver:
            return
        delivery = _Delivery()
    except ImproperlyConfigured:
        # The system checks of runserver report it.
        return
    sys.stderr.write("This server also delivers the outbox's messages (OUTBOX['DELIVER_IN_RUNSERVER']).\n")
    delivery.start()


class _Delivery:
    """A thread with a relay, which waits for `migrate` while tables are missing."""

    def __init__(self) -> None:
        self._relay = Relay()
        self._left = threading.Event()
        # Python waits without limit for threads that are not daemons.
        self._thread = threading.Thread(target=self._deliver, name="outbox-runserver", daemon=True)

    def start(self) -> None:
        self._thread.start()
        atexit.register(self._stop)

    def _deliver(self) -> None:
        reported = ""
        with shown_log(1):
            while problem := find_missing_schema(self._relay.using):
                if problem != reported:
                    sys.stderr.write(f"The outbox's messages are not delivered yet: {problem}\n")
                reported = problem
                if self._left.wait(MIGRATION_INTERVAL):
                    return
            try:
                with self._relay:
                    self._relay.run()
            except OutboxError as error:
                sys.stderr.write(
                    f"The outbox's messages are no longer delivered: {one_line(error)} Restart the server.\n"
                )

    def _stop(self) -> None:
        self._left.set()
        self._relay.stop()
        # A second signal ends the wait.
        with suppress(KeyboardInterrupt, SystemExit):
            self._thread.join(STOP_TIMEOUT)
        if count := self._relay.open_batches:
            batches = counted(count, "batch", "batches")
            sys.stderr.write(f"Stopped before {batches} ended. The messages are still pending.\n")
