"""A relay in the process of `runserver`, so that development needs one terminal."""

import sys
import threading

from django.core.exceptions import ImproperlyConfigured

from django_outbox.conf import get_settings
from django_outbox.exceptions import OutboxError
from django_outbox.management.service import shown_log
from django_outbox.relay.relay import Relay
from django_outbox.text import one_line


def start_relay(**_: object) -> None:
    """Deliver messages until the main thread ends, if `OUTBOX["DELIVER_IN_RUNSERVER"]` is set."""
    try:
        if not get_settings().deliver_in_runserver:
            return
        relay = Relay()
    except ImproperlyConfigured:
        # The system checks of runserver report it.
        return
    sys.stderr.write("This server also delivers the outbox's messages (OUTBOX['DELIVER_IN_RUNSERVER']).\n")
    # Not a daemon, so that a reload waits for the batches in hand.
    threading.Thread(target=_deliver, args=(relay,), name="outbox-runserver").start()
    threading.Thread(target=_stop_with_main_thread, args=(relay,), name="outbox-runserver-end", daemon=True).start()


def _deliver(relay: Relay) -> None:
    with shown_log(1), relay:
        try:
            relay.run()
        except OutboxError as error:
            sys.stderr.write(f"The outbox's messages are not delivered: {one_line(error)}\n")


def _stop_with_main_thread(relay: Relay) -> None:
    threading.main_thread().join()
    relay.stop()
