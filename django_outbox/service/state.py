"""The state that the threads of a relay or an inbox share, and the waits and limits of both."""

import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue

from django_outbox.retry import Backoff
from django_outbox.service.outages import Outages


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The waits in seconds and the limits of a relay and of an inbox.

    Args:
        database_wait: waits while the database is unavailable, or after it refused a batch because of a deadlock.
        restart_wait: waits before a thread that crashed starts again.
        drain_patience: number of failed attempts in a row after which a drain, or an inbox that ends when it is idle,
            gives up because the broker or the database is unavailable.
        stop_delay: how long a waiting thread may take to notice that the process is stopping.
        announce_interval: time between two log lines about the work.
        purge_interval: time between two purges.
        purge_patience: how long a process that stops waits for its purge. The next purge deletes the rest.
        report_pace: factor of the interval between two reports.
        report_patience: how long a process that stops waits for its last report.
    """

    database_wait: Backoff = field(default=Backoff(delay=0.1, max_delay=3.0, jitter=1.0))
    restart_wait: Backoff = field(default=Backoff(delay=1.0, max_delay=60.0, jitter=1.0))
    drain_patience: int = 4
    stop_delay: float = 0.1
    announce_interval: float = 60.0
    purge_interval: float = 60.0
    purge_patience: float = 0.5
    report_pace: float = 1.0
    report_patience: float = 3.0


@dataclass(eq=False)
class ServiceState:
    """The state that the threads of a relay or an inbox share.

    Args:
        stopping: whether the process is stopping.
        stop_requests: wakes the thread that waits for the others. A signal handler may put something into it, because
            `SimpleQueue.put` is reentrant: an `Event` has a lock, which the interrupted thread may hold.
        abandoned: whether threads may still be at work, because they were not finished in time.
        changed: notified when the process is stopping, so that a thread that waits need not look.
    """

    using: str
    limits: ServiceLimits
    outages: Outages = field(default_factory=Outages)
    stopping: bool = False
    abandoned: bool = False
    stop_requests: SimpleQueue[None] = field(default_factory=SimpleQueue)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def database_subject(self) -> str:
        return f"Database {self.using!r}"

    @property
    def idle_reason(self) -> str:
        """The reason why no work is done, for the log; empty if there is none."""
        if self.stopping:
            return "stopping"
        return ", ".join(f"{outage.name} {outage.state}" for outage in self.outages.current)

    def request_stop(self) -> None:
        """Let the thread that waits for the others stop them. Safe to call in a signal handler."""
        self.stopping = True
        self.stop_requests.put(None)

    def stop(self) -> None:
        """Let all threads stop."""
        self.stopping = True
        with self.changed:
            self.changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait; return early if the process is stopping."""
        end = time.monotonic() + seconds
        while not self.stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.limits.stop_delay))
