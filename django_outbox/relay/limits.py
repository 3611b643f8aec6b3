"""The waits and limits of a relay that are not settings, each with its reason."""

from dataclasses import dataclass, field

from django_outbox.retry import Backoff
from django_outbox.service.state import ServiceLimits


@dataclass(frozen=True, slots=True)
class Limits(ServiceLimits):
    """The waits in seconds and the limits of a relay, in addition to `ServiceLimits`. Tests pass shorter ones.

    Args:
        outage_wait: how long a circuit breaker stays open: at least 0.2 seconds, and never more than twice `max_delay`,
            so that the relay is back within seconds of the broker's return. The jitter spreads the return of many
            relays over the same time again.
        unsettled_wait: how long it stays open after messages were published twice in a row and could not be settled:
            each trial publishes some of them again.
        unsettled_memory: seconds after which a closed circuit breaker forgets such messages, which another relay may
            have settled; longer than the longest wait.
        refused_wait: how long a message is not published if the database refuses every new state of it; longer from
            refusal to refusal, because each attempt publishes it again.
        reconnect_wait: waits before the listener reconnects; the relay polls in the meantime.
        trial_size: maximum number of messages that a half-open circuit breaker permits.
        first_idle_wait: initial idle wait; it doubles or quadruples after each empty claim, up to the poll interval.
        check_connection_after: idle wait after which the database may have closed the connection
            (`idle_session_timeout` of PostgreSQL, `wait_timeout` of MySQL and MariaDB), which is not an error.
        listen_time: how long the listener waits for a notification before it checks whether the relay is stopping.
        watch_interval: time between two looks for database calls that hang.
        hang_patience: how long a claim or a settlement may wait for the database before this is reported.
        tenant_interval: time between two looks for new and deleted tenants, and for those that could not be served.
        pause_interval: how long a relay uses what it has read of the pauses, and how long a paused worker waits.
        listed: maximum number of ids that one listing of a stream reads.
        idle_after: time after a listing that found nothing from which on a worker looks without a transaction, because
            mostly nothing is new.
        relist_after: time after such a listing from which on the worker lists again, which checks the server.
        table_interval: time between two looks at the table of a publisher that has a stream, if the last one found
            nothing.
        standby_interval: time between two attempts to take over a stream from another worker, which is fastest if it
            goes on; longer than the idle waits of that worker, so that one of the same relay does not try meanwhile.
        follow_pause: how long an open claim waits for the log to bring further messages.
        follow_time: time after which an open claim is settled although the log brings further messages.
        log_patience: time after which the log counts as behind, if it has not reached a sample.
        log_look_interval: time between two samples while the log brings nothing.
        log_open_interval: time between two attempts to read the log.
        log_standby_time: time after which a standby worker delivers nevertheless, because the other one may have no
            broker.
        log_read_time: time until an idle reader of the log checks whether its feed is closed.
    """

    outage_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=3.0, jitter=1.0))
    unsettled_wait: Backoff = field(default=Backoff(delay=1.0, max_delay=120.0, jitter=1.0))
    unsettled_memory: float = 600.0
    refused_wait: Backoff = field(default=Backoff(delay=60.0, max_delay=3600.0))
    reconnect_wait: Backoff = field(default=Backoff(delay=0.5, max_delay=30.0, jitter=1.0))
    trial_size: int = 10
    first_idle_wait: float = 0.02
    check_connection_after: float = 0.5
    listen_time: float = 0.5
    watch_interval: float = 2.0
    hang_patience: float = 30.0
    tenant_interval: float = 10.0
    pause_interval: float = 1.0
    listed: int = 10_000
    idle_after: float = 0.5
    relist_after: float = 10.0
    table_interval: float = 0.1
    standby_interval: float = 2.0
    follow_pause: float = 0.02
    follow_time: float = 0.05
    log_patience: float = 1.0
    log_look_interval: float = 1.0
    log_open_interval: float = 5.0
    log_standby_time: float = 10.0
    log_read_time: float = 0.5


LIMITS = Limits()
"""The default limits of a relay."""
