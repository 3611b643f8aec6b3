"""The waits and limits of a relay that are not settings, each with its reason."""

from dataclasses import dataclass, field

from django_outbox.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Limits:
    """Waits in seconds, and how often a relay tries. Tests pass shorter ones.

    Args:
        database_wait: waits while the database is unavailable, or after it refused a batch because of a deadlock.
        outage_wait: how long a circuit breaker stays open: at least 0.2 seconds, and never more than twice `max_delay`,
            so that the relay is back within seconds of the broker's return. The jitter spreads the return of many
            relays over the same time again.
        reconnect_wait: waits before the listener reconnects; the relay polls in the meantime.
        restart_wait: waits before a worker that crashed starts again.
        trial_size: maximum number of messages that a half-open circuit breaker permits.
        drain_patience: number of failed attempts in a row after which a drain gives up, because the broker or the
            database is unavailable.
        first_idle_wait: initial idle wait; it doubles after each empty claim, up to the poll interval.
        stop_delay: how long a waiting worker may take to notice that the relay is stopping, or that another worker's
            trial has ended.
        check_connection_after: idle wait after which the database may have closed the connection
            (`idle_session_timeout` of PostgreSQL, `wait_timeout` of MySQL and MariaDB), which is not an error.
        listen_time: how long the listener waits for a notification before it checks whether the relay is stopping.
        watch_interval: time between two looks for database calls that hang.
        hang_patience: how long a claim or a settlement may wait for the database before this is reported.
        announce_interval: time between two log lines of a relay about its work.
        pause_interval: how long a relay uses what it has read of the pauses, and how long a paused worker waits.
        purge_interval: time between two purges.
        purge_patience: how long a relay that stops waits for its purge. The next purge deletes the rest.
        report_pace: factor of the database's interval between two reports.
        report_patience: how long a relay that stops waits for its last report.
    """

    database_wait: Backoff = field(default=Backoff(delay=0.1, max_delay=3.0, jitter=1.0))
    outage_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=3.0, jitter=1.0))
    reconnect_wait: Backoff = field(default=Backoff(delay=0.5, max_delay=30.0, jitter=1.0))
    restart_wait: Backoff = field(default=Backoff(delay=1.0, max_delay=60.0, jitter=1.0))
    trial_size: int = 10
    drain_patience: int = 4
    first_idle_wait: float = 0.01
    stop_delay: float = 0.1
    check_connection_after: float = 0.5
    listen_time: float = 0.5
    watch_interval: float = 2.0
    hang_patience: float = 30.0
    announce_interval: float = 60.0
    pause_interval: float = 1.0
    purge_interval: float = 60.0
    purge_patience: float = 0.5
    report_pace: float = 1.0
    report_patience: float = 0.5


LIMITS = Limits()
"""The default limits of a relay."""
