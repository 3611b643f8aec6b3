"""One relay for many tenants: its threads deliver the messages of each tenant's schema in turn.

Few queries find the schemas with due messages, and only those have turns, of a batch each. Each schema has its
breakers, pauses, purge and reports, so what is wrong in one does not affect the others.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError, connections

from django_outbox.brokers.publisher import Publisher
from django_outbox.db.errors import shows_conflict
from django_outbox.exceptions import OutboxError
from django_outbox.relay.reports import make_reporter
from django_outbox.relay.state import RelayState
from django_outbox.relay.wake_ups import listening
from django_outbox.relay.worker import Worker
from django_outbox.retention.purge import Purger
from django_outbox.service.heartbeats import REPORT_INTERVAL, Reporter
from django_outbox.service.outages import Outage
from django_outbox.service.running import note_crash, restart_on_crash
from django_outbox.stores import get_store
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.utils.logs import name_schema
from django_outbox.utils.rates import Throttle
from django_outbox.utils.text import describe
from django_outbox.utils.threads import in_background, own_connection

MAX_PAUSE = 30.0
"""Maximum seconds between two looks, and between two rounds of reports, however long they take."""

PATIENCE = 5.0
"""Maximum seconds for the last reports, of which there may be hundreds, when the relay ends."""

CHANNEL = "django_outbox_tenants"
"""The channel on which a relay tests whether it receives notifications; each schema has its own."""

LIMIT_LOCK_WAITS = "SET lock_timeout TO '500ms'"
"""Keeps a table that is locked, such as by VACUUM FULL, from holding up the look at the others."""

ANY_SCHEMA = "The outbox of all tenants"

NO_SCHEMA = "no tenant's schema has the outbox's table; with SHARED_APPS, run run_outbox without --all-schemas"
"""The reason of the outage while there is no schema to serve."""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A tenant that is served, and what the relay knows of its schema."""

    tenant: Any
    state: RelayState
    reporter: Reporter
    purger: Purger


class Tenants:
    """The schemas that a relay serves, and the turns of its threads."""

    def __init__(self, state: RelayState, publishers: Sequence[Publisher], workers: int) -> None:
        connection: Any = connections[state.using]
        self._model: str = getattr(django_settings, "TENANT_MODEL", "")
        if not (self._model and hasattr(connection, "set_tenant")):
            raise ImproperlyConfigured(
                f"DATABASES[{state.using!r}] has no schemas of tenants: that needs an engine like django-tenants', and "
                "the setting TENANT_MODEL."
            )
        if streamed := sorted(state.settings.streamed & state.batch_sizes.keys()):
            raise ImproperlyConfigured(
                f"The publisher {streamed[0]!r} has a SOURCE that one relay cannot serve in many schemas. Set it to "
                '"table", or run a relay for each schema: manage.py tenant_command run_outbox --schema=NAME'
            )
        self._state = state
        self._service = state.service
        self._workers = workers
        self._schemas: dict[str, Schema] = {}
        # The schema of each channel, and the channels to which the listener listens.
        self._channels: dict[str, str] = {}
        self._heard: set[str] = set()
        self._unreadable: set[str] = set()
        self.works: list[Callable[[], None]] = []
        self._found: dict[str, list[SimpleQueue[set[str]]]] = {}
        for publisher in publishers:
            queues = self._found[publisher.alias] = [SimpleQueue() for _ in range(workers)]
            self.works += [partial(self._keep_serving, publisher, queue) for queue in queues]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Look for tenants and due messages, report and purge, in threads, until the end of the block."""
        patience = self._state.limits.purge_patience
        with (
            in_background(self._keep_reporting, name="outbox-reports", patience=PATIENCE),
            in_background(self._keep_purging, name="outbox-purge", patience=patience),
            in_background(self._keep_looking, name="outbox-look", patience=patience),
            listening(self._state.using, self._hear, self._state.limits, channel=CHANNEL),
        ):
            yield

    # Turns

    def _keep_serving(self, publisher: Publisher, found: "SimpleQueue[set[str]]") -> None:
        state = self._state
        subject = state.name_worker(publisher.alias)
        restart_on_crash(lambda: self._serve(publisher, found), subject, self._service, state.limits.restart_wait)

    def _serve(self, publisher: Publisher, found: "SimpleQueue[set[str]]") -> None:
        """Deliver a batch of each schema in turn."""
        workers: dict[Schema, Worker] = {}
        # When each schema has its next turn, by the monotonic clock.
        turns: dict[str, float] = {}
        # Two threads begin at different ends, so that they rarely meet.
        backwards = self._found[publisher.alias].index(found) % 2 == 1
        served_at = time.monotonic()
        try:
            while not self._service.stopping:
                wait = min([self._state.limits.stop_delay, *(at - time.monotonic() for at in turns.values())])
                with suppress(Empty):
                    names = found.get(timeout=max(wait, 0.0))
                    # More sets may have arrived during the last turns.
                    while True:
                        for name in names:
                            turns.setdefault(name, 0.0)
                        names = found.get_nowait()
                due = sorted(name for name, at in turns.items() if at <= time.monotonic())
                for gone in workers.keys() - {*self._schemas.values()} if due else ():
                    self._drop(gone, workers)
                for name in reversed(due) if backwards else due:
                    if self._service.stopping:
                        return
                    idle = time.monotonic() - served_at >= self._state.limits.check_connection_after
                    seconds = self._take_turn(publisher, name, workers, check_connection=idle)
                    served_at = time.monotonic()
                    turns[name] = served_at + seconds
                    if turns[name] == math.inf:
                        del turns[name]
        finally:
            for schema in [*workers]:
                self._drop(schema, workers)

    def _drop(self, schema: Schema, workers: dict[Schema, Worker]) -> None:
        """Close a worker, which gives back what it has reserved of a rate limit."""
        if worker := workers.pop(schema, None):
            self._enter(schema)
            with suppress(DatabaseError, InterfaceError):
                worker.close()

    def _take_turn(
        self, publisher: Publisher, name: str, workers: dict[Schema, Worker], *, check_connection: bool
    ) -> float:
        """Deliver a batch of one schema, and return the seconds until its next turn."""
        schema, limits = self._schemas.get(name), self._state.limits
        if schema is None:
            return math.inf
        self._enter(schema)
        try:
            worker = workers[schema] = workers.get(schema) or Worker(publisher, schema.state, reads_log=True)
            if check_connection:
                worker.check_connection()
            attempt = worker.deliver()
            seconds = _find_next_turn(worker) if attempt.is_idle else attempt.wait
        except OutboxError as error:
            # For example, its table is missing.
            self._drop(schema, workers)
            self._service.outages.note(Outage(_subject(name), describe(error)))
            return limits.tenant_interval
        except BaseException as error:
            self._drop(schema, workers)
            return note_crash(error, schema.state.name_worker(publisher.alias), self._service, limits.restart_wait)
        self._service.outages.end(_subject(name))
        return seconds

    def _enter(self, schema: Schema) -> None:
        connection: Any = connections[self._state.using]
        if connection.tenant is not schema.tenant:
            connection.set_tenant(schema.tenant)
        name_schema(schema.tenant.schema_name)

    # Looks

    def _keep_looking(self, left: threading.Event) -> None:
        """Find the tenants, and the schemas with due messages, until the event is set."""
        state, subject = self._state, f"The list of tenants of database {self._state.using!r}"
        throttle = Throttle(min_interval=state.poll_interval, max_interval=MAX_PAUSE)
        listed_at = -math.inf
        with own_connection(state.using):
            while not left.wait(state.limits.stop_delay):
                if not throttle.is_open:
                    continue
                began = time.monotonic()
                try:
                    with state.database_calls.watch(connections[state.using], state.settings.claim_timeout):
                        self._store.execute(LIMIT_LOCK_WAITS)
                        if began - listed_at >= state.limits.tenant_interval:
                            self._list()
                            listed_at = began
                        self._look()
                    self._service.outages.end(subject)
                except Exception as error:
                    self._service.outages.note(Outage(subject, describe(error)))
                    listed_at = -math.inf
                    with suppress(Exception):
                        connections[state.using].close()
                throttle.spend(time.monotonic() - began)

    def _list(self) -> None:
        """Find the tenants, and add or drop schemas."""
        connection: Any = connections[self._state.using]
        connection.set_schema_to_public()
        tenants = apps.get_model(self._model)._default_manager.using(self._state.using)
        having = self._store.find_schemas()
        found = {each.schema_name: each for each in tenants.all() if each.schema_name in having}
        for name, schema in [*self._schemas.items()]:
            # A tenant may have been created again.
            if name not in found or found[name].pk != schema.tenant.pk:
                del self._schemas[name]
                self._service.outages.forget(_subject(name))
        new = found.keys() - self._schemas.keys()
        for name in new:
            state = self._state.for_schema(name)
            reporter = make_reporter(state, "run", self._workers)
            self._schemas[name] = Schema(found[name], state, reporter, Purger(state.using, state.limits.purge_interval))
            self._service.outages.end(_subject(name))
        if found:
            self._service.outages.end(ANY_SCHEMA)
        else:
            self._service.outages.note(Outage(ANY_SCHEMA, NO_SCHEMA))
        self._channels = {having[name]: name for name in self._schemas}
        self._unreadable = set()
        # What the look does not find: messages that are left in a stream.
        self._wake((name, alias) for name in new for alias in self._found)

    def _look(self) -> None:
        """Give a turn to each schema with due messages."""
        names, aliases = [*self._schemas.keys() - self._unreadable], [*self._found]
        if not names:
            return
        try:
            self._wake(self._store.find_due_schemas(names, aliases))
        except (ProgrammingError, OperationalError):
            # A schema was deleted or is locked, the server has no room for so many locks, or a table or a right is
            # missing in some, which their turns report.
            self._list()
            for name in [*self._schemas]:
                try:
                    self._wake(self._store.find_due_schemas([name], aliases))
                except ProgrammingError:
                    self._unreadable.add(name)
                    self._wake((name, alias) for alias in aliases)
                except OperationalError as error:
                    if not shows_conflict(error):
                        raise
                    self._unreadable.add(name)

    def _hear(self, notified: Set[tuple[str, str]] | None) -> None:
        """Give turns to the schemas that were notified, and listen to new ones."""
        if notified is None:
            # Over a new connection.
            self._heard = set()
        for channel in self._channels.keys() - self._heard:
            self._store.execute(f"LISTEN {channel}")
            self._heard.add(channel)
        for channel, alias in notified or ():
            if channel in self._channels and alias in self._found:
                # One thread is enough.
                min(self._found[alias], key=SimpleQueue.qsize).put({self._channels[channel]})

    def _wake(self, found: Iterator[tuple[str, str]]) -> None:
        by_alias: dict[str, set[str]] = {}
        for name, alias in found:
            by_alias.setdefault(alias, set()).add(name)
        for alias, names in by_alias.items():
            for queue in self._found[alias]:
                queue.put(names)

    @property
    def _store(self) -> PostgreSQLStore:
        store = get_store(connections[self._state.using])
        assert isinstance(store, PostgreSQLStore)
        return store

    # Reports and purges

    def _keep_reporting(self, left: threading.Event) -> None:
        """Report in each schema at intervals until the event is set, and then for a last time.

        `Reporter.keep_reporting` says what is reported while the process is stopping.
        """
        state = self._state
        interval = REPORT_INTERVAL * state.limits.report_pace
        throttle = Throttle(min_interval=interval, max_interval=MAX_PAUSE)
        while True:
            ended, stopping, began = left.is_set(), self._service.stopping, time.monotonic()
            # An outage, which the look logs, ends the round.
            with own_connection(state.using), suppress(DatabaseError, InterfaceError):
                for schema in [*self._schemas.values()]:
                    connections[state.using].ensure_connection()
                    self._enter(schema)
                    schema.reporter.try_to_write(last=ended or stopping)
            if ended:
                return
            throttle.spend(time.monotonic() - began)
            while not (left.wait(state.limits.stop_delay) or throttle.is_open):
                if self._service.stopping != stopping:
                    break

    def _keep_purging(self, left: threading.Event) -> None:
        while not left.wait(self._state.limits.purge_interval):
            for schema in [*self._schemas.values()]:
                self._enter(schema)
                schema.purger.purge(lambda: left.is_set() or self._service.stopping)
                if left.is_set():
                    return


def _find_next_turn(worker: Worker) -> float:
    """Return the seconds until the next turn of an idle worker; infinity if nothing is due."""
    if worker.source.exhausted:
        return math.inf
    # Another worker may have what is due.
    worker.source.sweep_next()
    return worker.idle_wait()


def _subject(name: str) -> str:
    return f"Schema {name!r}"
