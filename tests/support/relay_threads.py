"""Relays in threads of the test's process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_outbox.relay import Relay
from django_outbox.relay.limits import Limits
from django_outbox.retry import Backoff

_WAIT = Backoff(delay=0.01, max_delay=0.05)

QUICK = Limits(database_wait=_WAIT, outage_wait=_WAIT, restart_wait=_WAIT, reconnect_wait=_WAIT)
"""Limits for relays that meet outages and errors in a test: they wait for milliseconds only."""

STOP_PATIENCE = 20
"""Seconds within which a relay has to stop."""


@contextmanager
def relays_in_threads(**defaults: Any) -> Iterator[Callable[..., Relay]]:
    """Yield what starts a relay, by its arguments over these defaults; in the end all of them are stopped."""
    started: list[tuple[Relay, threading.Thread]] = []

    def start(**arguments: Any) -> Relay:
        relay = Relay(**{**defaults, **arguments})

        def work() -> None:
            relay.run()
            connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        started.append((relay, thread))
        return relay

    try:
        yield start
    finally:
        for relay, _ in started:
            relay.stop()
        for relay, thread in started:
            thread.join(STOP_PATIENCE)
            assert not thread.is_alive(), "the relay did not stop"
            relay.close()


@contextmanager
def running_relay(**arguments: Any) -> Iterator[Relay]:
    with relays_in_threads(**arguments) as start:
        yield start()
