"""SIGTERM and SIGINT for a command that runs a relay or an inbox: the process ends in time, whatever hangs."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from select import select
from types import FrameType
from typing import Any, Protocol

from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted
from django_outbox.utils.threads import after_fork

SIGNALS = (signal.SIGTERM, signal.SIGINT)

WIPED = "\r\x1b[2K\x1b[?25h"
"""Wipes the line of a terminal, and shows its cursor again."""


class Stoppable(Protocol):
    @property
    def open_batches(self) -> int: ...

    def stop(self) -> None: ...


class StopSignals:
    """Stops a relay or an inbox at the first signal, within a timeout, and ends the process at once at the second one.

    Python calls a signal handler in the main thread between two bytecode instructions, not while that thread waits for
    a driver, a lock or a full pipe. The number of the signal, however, is written to a socket as soon as it arrives,
    and a thread reads it there.

    Nothing is lost, however the process ends, because its database connections and their locks end with it.

    Args:
        until_exit: whether to watch until the process ends, not only until the end of the context: for a process that
            runs nothing else.
    """

    def __init__(self, timeout: float, *, until_exit: bool, unfinished: str) -> None:
        self.received = False
        self._unfinished = unfinished
        self._timeout = timeout
        self._until_exit = until_exit
        self._relay: Stoppable | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        # A forked child would write its signals to the parent's socket.
        after_fork(self, StopSignals.forget)

    def __enter__(self) -> "StopSignals":
        # Only the main thread may set handlers.
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._handlers = {number: signal.signal(number, _do_nothing) for number in SIGNALS}
            threading.Thread(target=self._watch, name="outbox-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handlers and not self._until_exit:
            self.forget()
            self._writer.close()

    def watch_for(self, relay: Stoppable) -> None:
        """Stop it when a signal comes, or at once if one has come already."""
        self._relay = relay
        if self.received:
            relay.stop()

    def forget(self) -> None:
        if self._handlers:
            signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _watch(self) -> None:
        deadline: float | None = None
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._reader.settimeout(left)
            try:
                numbers = self._reader.recv(1024)
            except TimeoutError:
                break
            if not numbers:
                self._reader.close()
                return
            for number in numbers:
                if number not in SIGNALS:
                    continue
                if deadline is not None:
                    _print("")
                    os._exit(128 + number)
                deadline = time.monotonic() + self._timeout
                self.received = True
                if self._relay is not None:
                    self._relay.stop()
                    # The log may hang, and this thread must not.
                    threading.Thread(
                        target=_announce, args=(self._relay, number, self._timeout), name="outbox-stopping", daemon=True
                    ).start()
        _print(f"{self._unfinished}\n")
        os._exit(0)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Replace the default handlers of Python and the system, because a process with the number 1 has no default."""


def _announce(relay: Stoppable, number: int, timeout: float) -> None:
    again = "press Ctrl-C again to stop at once" if number == signal.SIGINT else "a second signal stops at once"
    if count := relay.open_batches:
        logger.info(
            "Finishing %s, at most %g s; %s.",
            counted(count, "batch", "batches"),
            timeout,
            again,
            event="process.stopping",
            count=count,
            seconds=timeout,
        )
    else:
        logger.info("Stopping; %s.", again, event="process.stopping")


def _print(text: str) -> None:
    """Write to standard error, unless it is closed or has lost its reader; a live line on a terminal is wiped first."""
    with suppress(Exception):
        number = sys.__stderr__.fileno() if sys.__stderr__ else sys.stderr.fileno()
        if os.isatty(number):
            text = f"{WIPED}{text}"
        if text and select([], [number], [], 0)[1]:
            os.write(number, text.encode())
