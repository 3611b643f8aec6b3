"""System checks of the settings and the databases. Each message has an ID, and a hint with the remedy.

`django_outbox.conf` finds E001 to E005 and E023, `django_outbox.brokers.registry` finds E006 to E008,
`django_outbox.celery.configuration` finds E030 to W032, and this module finds the others.
"""

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import storages
from django.db import DatabaseError, connections, router
from django.db.models import ForeignKey
from django.utils.module_loading import import_string

from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.brokers.registry import build_publisher, import_backend
from django_outbox.conf import OutboxSettings, SettingsProblem, get_settings, parse_settings
from django_outbox.conf.routes import find_unreachable, hint_of_publisher
from django_outbox.db.autovacuum import find_untuned_rows
from django_outbox.db.routing import describe_denied
from django_outbox.enqueueing.writing import CHUNK_BYTES
from django_outbox.events import RecordsEvents
from django_outbox.events.event_type import EventType
from django_outbox.events.registry import registry as event_registry
from django_outbox.exceptions import InvalidEvent
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import AnyHandler, registry
from django_outbox.messages import DJANGO_TASK
from django_outbox.models import OutboxMessage
from django_outbox.models.links import find_links
from django_outbox.stores import find_store
from django_outbox.stores.dialect import Dialect
from django_outbox.stores.mysql import MySQLStore
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.publishers import find_unknown_publishers
from django_outbox.stores.schema import REQUIRED, find_unapplied_migrations
from django_outbox.stores.wal_setup import LogSetup
from django_outbox.utils.text import counted, did_you_mean, one_line

DISTRIBUTION = "django-transactional-outbox"
"""The name of this package on PyPI."""

TAG = "django_outbox"
"""Selects the checks of this app: `manage.py check --tag django_outbox`."""

INBOX = "django_outbox.inbox"

TASKS = "django_outbox.contrib.django_tasks"

CELERY_PUBLISHER = "django_outbox.brokers.celery.CeleryPublisher"

Check = Callable[..., list[CheckMessage]]


def registered(find: Callable[[], Iterator[CheckMessage]]) -> Check:

    @register(TAG)
    def check(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
        return [*find()]

    return check


def of_settings(find: Callable[[OutboxSettings], Iterator[CheckMessage]]) -> Check:
    """Register a function as a check of the settings; if they cannot be read, `check_settings` reports that."""

    @registered
    def check() -> Iterator[CheckMessage]:
        if settings := parse_settings()[0]:
            yield from find(settings)

    return check


@registered
def check_settings() -> Iterator[CheckMessage]:
    """Check every key and value of `OUTBOX`, and that every publisher can be constructed."""
    settings, problems = parse_settings()
    for publisher_alias, config in settings.publishers.items() if settings else ():
        try:
            build_publisher(publisher_alias, config)
        except SettingsProblem as problem:
            problems.append(problem)
    yield from (problem.as_check for problem in problems)


@of_settings
def check_redaction(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that the function that redacts payloads can be imported and called."""
    if settings.redact is None:
        return
    try:
        problem = "" if callable(import_string(settings.redact)) else "it cannot be called"
    except Exception as error:
        problem = one_line(error)
    if problem:
        yield Error(
            f"OUTBOX['REDACT'] is {settings.redact!r}, which cannot be used: {problem}",
            hint="Give the dotted path of a function that takes type, payload and headers, and returns payload and "
            "headers. Until then the admin hides both.",
            id="django_outbox.E070",
        )


@of_settings
def check_payload_sizes(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that each publisher's broker takes every payload that `enqueue` does."""
    for publisher_alias, config in settings.publishers.items():
        # `check_settings` reports a publisher that cannot be constructed.
        with suppress(SettingsProblem):
            limit = build_publisher(publisher_alias, config).max_payload_bytes
            if limit is not None and limit < settings.max_payload_bytes:
                yield Warning(
                    f"The publisher {publisher_alias!r} takes messages of at most {limit:,} bytes, but "
                    f"OUTBOX['MAX_PAYLOAD_BYTES'] is {settings.max_payload_bytes:,}.",
                    hint=f"Set MAX_PAYLOAD_BYTES to at most {limit:,}, or larger messages fail after the commit.",
                    id="django_outbox.W026",
                )


@of_settings
def check_celery(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that each `OutboxTask` of the Celery apps has a publisher that sends it."""
    if _uses_celery(settings):
        from django_outbox.celery.configuration import find_problems  # noqa: PLC0415 - needs Celery

        yield from (problem.as_check for problem in find_problems(settings))


def _uses_celery(settings: OutboxSettings) -> bool:
    """Return whether there may be tasks. If not, Celery need not be installed."""
    if "django_outbox.celery.task" in sys.modules:
        return True
    # Nothing has imported the Celery app yet.
    backends = [config.backend for config in settings.publishers.values()]
    return CELERY_PUBLISHER in backends and find_spec("celery") is not None


@of_settings
def check_routes(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that every pattern of `ROUTES` can apply."""
    for pattern, earlier in find_unreachable(settings.routes):
        yield Warning(
            f"The pattern {pattern!r} in OUTBOX['ROUTES'] never applies, because {earlier!r} comes first and matches "
            "the same types.",
            hint="Write narrow patterns before wide ones, or remove it.",
            id="django_outbox.W023",
        )


@of_settings
def check_inbox(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that the app with the command for the consumers is installed."""
    if settings.consumers and not apps.is_installed(INBOX):
        yield Warning(
            "OUTBOX has CONSUMERS, but the app that runs them is not installed.",
            hint="Add 'django_outbox.inbox' to INSTALLED_APPS, and run \"manage.py migrate\".",
            id="django_outbox.W035",
        )


@of_settings
def check_events(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check the classes of events: types, keys, upgrades, fields and publishers."""
    for first, second in event_registry.conflicts:
        yield Error(
            f"Two classes are registered for the event {first.type}: {first.path} and {second.path}.",
            hint="Give one of them another type. If the second one is a newer version, change the class instead, "
            "increase its version and write an upgrade.",
            id="django_outbox.E019",
        )
    for event_type in event_registry:
        yield from _check_key(event_type)
        yield from _check_upgrades(event_type)
        yield from _check_schema(event_type)
        yield from _check_event_publisher(event_type, settings.publishers)


def _check_key(event_type: EventType) -> Iterator[CheckMessage]:
    known = event_type.codec.field_names
    try:
        names = event_type.key_fields
        unknown = [name for name in names if name not in known]
        problem = f"has no field {unknown[0]!r}" if unknown else ""
    except ValueError as error:
        names, unknown, problem = [], [], f"cannot use it as a template: {error}"
    if problem:
        similar = "".join(f"Did you mean {{{name}}}? " for name in get_close_matches((unknown or [""])[0], known, n=1))
        yield Error(
            f"The key of the event {event_type.type} is {event_type.key!r}, but {event_type.path} {problem}.",
            hint=f"{similar}It must be a template such as 'order-{{id}}', with names of fields in braces. Fields: "
            f"{', '.join(known)}.",
            id="django_outbox.E020",
        )
    elif event_type.key and not names:
        yield Warning(
            f"The key of the event {event_type.type} is {event_type.key!r}, which names no field: all messages of the "
            "type have the same key, and are delivered one after the other.",
            hint="Name the field that identifies what is ordered, such as 'order-{id}'. If all of them are one "
            "sequence, silence this check.",
            id="django_outbox.W022",
        )


def _check_upgrades(event_type: EventType) -> Iterator[CheckMessage]:
    for version in event_type.missing_upgrades:
        yield Error(
            f"The upgrades of the event {event_type.type} have a gap: {event_type.path} has one from an older "
            f"version, but none from version {version}.",
            hint=f"Write one with @{event_type.cls.__name__}.upgrade(from_version={version}).",
            id="django_outbox.E021",
        )
    if event_type.version > 1 and not event_type.upgrades:
        previous = event_type.version - 1
        yield Warning(
            f"The event {event_type.type} has version {event_type.version}, but {event_type.path} has no upgrade "
            f"from version {previous}: older messages that are still to be delivered cannot be read.",
            hint=f"Write one with @{event_type.cls.__name__}.upgrade(from_version={previous}), or silence this check "
            "if there are no such messages.",
            id="django_outbox.W024",
        )


def _check_schema(event_type: EventType) -> Iterator[CheckMessage]:
    try:
        event_type.codec.schema("#/$defs/{model}")
    except InvalidEvent as error:
        yield Error(
            f"The event {event_type.type} cannot be encoded: {error}.",
            hint=f"Change the annotations of {event_type.path}.",
            id="django_outbox.E022",
        )
        return
    for name, reason in dict(event_type.codec.find_lost_fields()).items():
        yield Warning(
            f"A field of the event {event_type.type} never arrives: {name} {reason}.",
            hint=f"Remove it from {event_type.path}, or give it a type and a serializer that write its value. An event "
            "is stored and sent as plain text, so it should hold no secret.",
            id="django_outbox.W050",
        )


def _check_event_publisher(event_type: EventType, publishers: Collection[str]) -> Iterator[CheckMessage]:
    alias = event_type.publisher
    if alias is not None and alias not in publishers:
        yield Error(
            f"The event {event_type.type} names the publisher {alias!r}, which is not configured.",
            hint=hint_of_publisher(alias, publishers),
            id="django_outbox.E024",
        )


@registered
def check_links() -> Iterator[CheckMessage]:
    """Check that no foreign key of another model keeps messages from being deleted."""
    yield from map(_warn_of_link, find_links())


def _warn_of_link(link: "ForeignKey[Any, Any]") -> CheckMessage:
    return Warning(
        f"{link} is a foreign key to OutboxMessage. The outbox deletes messages by SQL, without on_delete, so a "
        "message that a row refers to is never deleted. With a RETENTION of timedelta(0), it is kept as a processed "
        "one.",
        hint="Store the message_id in a UUIDField, or set db_constraint=False. With Django 6.1, "
        "on_delete=models.DB_CASCADE or models.DB_SET_NULL lets the database do it.",
        id="django_outbox.W033",
    )


@of_settings
def check_archive(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check, without a request to it, that the archive's storage can be used and receives something."""
    if settings.archive is None:
        return
    alias = settings.archive.storage
    try:
        storages[alias]
    except Exception as error:
        # A storage's constructor may raise any exception.
        known = ", ".join(sorted(django_settings.STORAGES))
        yield Error(
            f"OUTBOX['ARCHIVE']['storage'] is {alias!r}, which is not usable: {one_line(error).rstrip('.')}.",
            hint=f"Define it in STORAGES, which has {known}. For a folder: {STORAGE.replace('ALIAS', alias)}.",
            id="django_outbox.E017",
        )
    if settings.deletes_processed:
        yield Error(
            "OUTBOX has an ARCHIVE, but its RETENTION is timedelta(0): processed messages are deleted as soon as they "
            "are delivered, and never archived.",
            hint="Set RETENTION to a time, such as timedelta(hours=1), or remove ARCHIVE.",
            id="django_outbox.E018",
        )
    if alias in {"default", "staticfiles"}:
        yield Warning(
            f"OUTBOX['ARCHIVE'] uses STORAGES[{alias!r}]. Its files are usually served to the public.",
            hint="Messages contain personal data. Define a private storage: "
            f"{STORAGE.replace('ALIAS', 'outbox_archive')}.",
            id="django_outbox.W019",
        )


STORAGE = (
    '"ALIAS": {"BACKEND": "django.core.files.storage.FileSystemStorage", '
    '"OPTIONS": {"location": "/var/lib/shop/outbox"}}'
)


@of_settings
def check_handlers(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that messages reach the local handlers, and that no copy of a failed message does."""
    backends = {alias: import_backend(config.backend) for alias, config in settings.publishers.items()}
    calling = [alias for alias, backend in backends.items() if issubclass(backend, HandlersPublisher)]
    if calling:
        yield from _find_unreachable_handlers(settings, calling)
    elif [*registry]:
        yield Warning(
            f"{counted(len([*registry]), 'local handler')} registered, but OUTBOX['PUBLISHERS'] has no "
            "HandlersPublisher, so none is called.",
            hint='Add "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}.',
            id="django_outbox.W025",
        )
    alias = settings.dead_letter_publisher
    if alias is not None and issubclass(backends[alias], TransactionalPublisher):
        yield Error(
            f"OUTBOX['DEAD_LETTER_PUBLISHER'] is {alias!r}, which takes no copies of failed messages: it delivers "
            "messages of the outbox only.",
            hint="Name the publisher of a broker, or use the signal messages_failed.",
            id="django_outbox.E027",
        )


@registered
def check_handler_functions() -> Iterator[CheckMessage]:
    """Check the local handlers: names that are taken, functions that cannot be called, patterns as types."""
    for second in registry.duplicates:
        if twin := registry.find_twin(second):
            yield Error(
                f"One file is imported as two modules, and its handler is registered twice: {_place(twin)} and "
                f"{_place(second)}. Only the first one is called.",
                hint="Import the module by one name everywhere, the one that INSTALLED_APPS has for its app.",
                id="django_outbox.E025",
            )
            continue
        first = registry.find(second.name)
        yield Error(
            f"Two handlers have the name {second.name!r}: {_place(first)} and {_place(second)}. Only the first one is "
            "called.",
            hint='Give one of them another name: @handler(..., name="send_receipt"). For several types, use one '
            '@handler("order.created", "order.paid").',
            id="django_outbox.E025",
        )
    for each in registry:
        for type in filter(_is_pattern, each.types):
            yield Warning(
                f"The handler {each.name!r} is registered for {type!r}. Patterns are not supported: the handler gets "
                "only messages of exactly this type.",
                hint='Name each type: @handler("order.created", "order.paid"). Patterns are for OUTBOX[\'ROUTES\'].',
                id="django_outbox.W027",
            )
        yield from _check_function(each, each.function, "handler", "event, message")
        if each.fallback_function is not None:
            yield from _check_function(each, each.fallback_function, "fallback of the handler", "event, message, error")


def _find_unreachable_handlers(settings: OutboxSettings, publishers: Collection[str]) -> Iterator[CheckMessage]:
    """Yield the handlers that no route reaches, and the types that are routed to handlers but have none."""
    events = {each.type: each for each in event_registry}

    def destinations(type: str) -> tuple[str, ...]:
        own = events[type].publisher if type in events else None
        return settings.publishers_of(type) if own is None else (own,)

    for checked in registry:
        # Consumers bring messages of any type. A Django task names its publisher.
        for type in () if settings.consumers else checked.types:
            if type != DJANGO_TASK and not _is_pattern(type) and not {*destinations(type)} & {*publishers}:
                yield _not_reached(checked, type, destinations(type), min(publishers))
    handled = sorted({type for checked in registry for type in checked.types})
    failing = {alias for alias in publishers if settings.publishers[alias].options.get("unhandled") != "skip"}
    exact = {type for type in settings.routes if not _is_pattern(type)}
    for type in sorted({*events, *exact} - {*handled}):
        for alias in destinations(type):
            if alias in failing:
                what = "event" if type in events else "type"
                similar = did_you_mean(type, handled)
                yield Warning(
                    f"The {what} {type} goes to {alias!r}, but no handler is registered for it, so its messages fail.",
                    hint=f"{similar}Register one with @handler({type!r}), send the {what} elsewhere, or set the option "
                    '"unhandled" of the publisher to "skip".',
                    id="django_outbox.W052",
                )


def _not_reached(checked: AnyHandler, type: str, destinations: Sequence[str], alias: str) -> CheckMessage:
    listed = ", ".join(map(repr, destinations))
    entry = ", ".join(f'"{each}"' for each in (*destinations, alias))
    return Warning(
        f"The handler {checked.name} handles {type}, which goes to {listed} only, so the handler is never called.",
        hint=f"Add \"{type}\": [{entry}] to OUTBOX['ROUTES'], before wider patterns. If each call of enqueue() passes "
        f"publisher={alias!r}, silence this check.",
        id="django_outbox.W051",
    )


def _is_pattern(type: str) -> bool:
    return any(character in type for character in "*?[")


def _check_function(
    checked: AnyHandler, function: Callable[..., Any], what: str, parameters: str
) -> Iterator[CheckMessage]:
    problem = ""
    if _is_generator(function):
        problem = "it is a generator, so calling it runs none of its code"
    else:
        if _is_generator(inspect.unwrap(function)):
            yield Warning(
                f"The {what} {checked.name!r} is a generator under a decorator. Unless the decorator runs it, none of "
                "its code runs, and its messages fail.",
                hint="Write it as a function that does its work when it is called.",
                id="django_outbox.W045",
            )
        try:
            inspect.signature(function).bind(*parameters.split(", "))
        except TypeError as error:
            problem = str(error)
        except ValueError:
            pass  # Some functions written in C have no signature.
    if problem:
        yield Error(
            f"The {what} {checked.name!r} cannot be called with {parameters}: {problem}.",
            hint=f"Define it as: def {getattr(function, '__name__', 'function')}({parameters}).",
            id="django_outbox.E026",
        )


def _is_generator(function: Callable[..., Any]) -> bool:
    """Return whether a call of a function, or of an object with `__call__`, only makes a generator."""
    called = (function, type(function).__call__)
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in called)


def _place(each: AnyHandler | None) -> str:
    function = inspect.unwrap(each.function) if each else None
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


@registered
def check_time_zone() -> Iterator[CheckMessage]:
    """Check that times are stored in UTC, because they are compared with the database's clock."""
    if not django_settings.USE_TZ:
        yield Error(
            "The outbox requires USE_TZ = True.",
            hint="Set USE_TZ = True. Without it Django stores local times, but the relay compares them in UTC.",
            id="django_outbox.E009",
        )


@registered
def check_autocommit() -> Iterator[CheckMessage]:
    """Check, without a query, that each database that may hold the outbox commits automatically."""
    for alias in connections:
        if connections[alias].settings_dict["AUTOCOMMIT"] or not router.allow_migrate_model(alias, OutboxMessage):
            continue
        yield Error(
            f"DATABASES[{alias!r}] has AUTOCOMMIT = False, so a relay would never commit the messages' new state.",
            hint="Remove AUTOCOMMIT and use transaction.atomic() or ATOMIC_REQUESTS, or route OutboxMessage elsewhere.",
            id="django_outbox.E015",
        )


def _databases_in_use() -> Iterator[tuple[str, str]]:
    """Return the aliases of the databases that get messages, each with the place that names it."""
    yield router.db_for_write(OutboxMessage), "The router's database for writing messages"
    for model in apps.get_models():
        if issubclass(model, RecordsEvents):
            yield router.db_for_write(model), f"The database of the model {model._meta.label}, which records events,"
    if apps.is_installed(TASKS):
        tasks: Any = apps.get_app_config("outbox_tasks")
        for backend in tasks.find_backends():
            if alias := backend.outbox.values.get("database"):
                yield alias, f"The database of TASKS[{backend.alias!r}]"


@registered
def check_routers() -> Iterator[CheckMessage]:
    """Check, without a query, that routers allow the outbox's tables where messages are stored."""
    # The inbox is where the relay of the router's database is.
    models = [*REQUIRED, *(apps.get_app_config("outbox_inbox").get_models() if apps.is_installed(INBOX) else ())]
    checked = set[str]()
    for alias, place in _databases_in_use():
        # `check_tenants` checks schemas of tenants, whose router decides by the schema.
        if alias in checked or alias not in connections or hasattr(connections[alias], "set_tenant"):
            continue
        if denied := describe_denied(alias, models if not checked else REQUIRED):
            yield Warning(
                f"{place} is {alias!r}, but DATABASE_ROUTERS keep tables of the outbox out of it.",
                hint=denied[0].upper() + denied[1:],
                id="django_outbox.W046",
            )
        checked.add(alias)


@registered
def check_tenants() -> Iterator[CheckMessage]:
    """Check that one of the lists of apps of django-tenants, and of its forks, has the outbox and its other apps."""
    aliases = {alias for alias, _ in _databases_in_use() if alias in connections}
    has_tenants = any(hasattr(connections[alias], "set_tenant") for alias in aliases)
    if not has_tenants or hasattr(django_settings, "TENANT_TYPES"):
        return
    lists = {name: getattr(django_settings, name, ()) for name in ("SHARED_APPS", "TENANT_APPS")}
    places: dict[str, list[str]] = {}
    for config in apps.get_app_configs():
        if f"{config.name}.".startswith("django_outbox."):
            names = {config.name, f"{type(config).__module__}.{type(config).__qualname__}"}
            places[config.name] = [place for place, listed in lists.items() if names & {*listed}]
    for app, found in places.items():
        if len(found) == 1 and found == places["django_outbox"]:
            continue
        yield Warning(
            f"The app {app!r} is in {' and '.join(found) or 'neither SHARED_APPS nor TENANT_APPS'}.",
            hint="Put all apps of the outbox into one of them: into TENANT_APPS for a table in each tenant's schema, "
            "or into SHARED_APPS for one table for all. If they are in both, enqueue() writes to the tenant's table "
            "and the relay reads the public one.",
            id="django_outbox.W047",
        )


LIBPQ_TIMEOUTS = (
    '{"connect_timeout": 5, "tcp_user_timeout": 8000, "keepalives_idle": 5, "keepalives_interval": 2, '
    '"keepalives_count": 3}'
)


@registered
def check_distribution() -> Iterator[CheckMessage]:
    """Check, by the lists of installed files, that no other distribution owns files of this package."""
    package = Path(__file__).parent
    # Reading one list as text takes a quarter of a millisecond; packages_distributions() takes many times as long.
    installed = distributions(path=[str(package.parent)])
    for name in [str(each.name) for each in installed if f"\n{package.name}/" in f"\n{each.read_text('RECORD') or ''}"]:
        if re.sub(r"[-_.]+", "-", name).lower() != DISTRIBUTION:
            yield Error(
                f"The distribution {name!r} has installed files into {package.name}/, too. One has overwritten files "
                "of the other.",
                hint=f'Run "pip uninstall {name} {DISTRIBUTION}", then "pip install {DISTRIBUTION}".',
                id="django_outbox.E029",
            )


@register(TAG, deploy=True)
def check_timeouts(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check, without a query, that libpq will notice a PostgreSQL server that vanishes from the network."""
    return [
        Warning(
            f"DATABASES[{alias!r}] has no {' and no '.join(missing)} in its OPTIONS. If the server vanishes from the "
            "network, a relay may hang for minutes without a line in the log.",
            hint=f'Set them, for example: "OPTIONS": {LIBPQ_TIMEOUTS}. tcp_user_timeout is in milliseconds.',
            id="django_outbox.W016",
        )
        for alias in connections
        if router.allow_migrate_model(alias, OutboxMessage)
        and (store := find_store(connections[alias]))
        and (missing := store.dialect.missing_timeouts)
    ]


@register(TAG, Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check that the relay can work on each database that holds the outbox."""
    held = [alias for alias in databases or [] if router.allow_migrate_model(alias, OutboxMessage)]
    return [problem for alias in held for problem in _check_database(alias)]


def _check_database(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    store = find_store(connection)
    if store is None:
        yield Error(
            f"The outbox does not support the database {alias!r} (vendor {connection.vendor!r}).",
            hint="Route OutboxMessage to a PostgreSQL, MySQL, MariaDB or SQLite database.",
            id="django_outbox.E010",
        )
        return
    if feature := store.dialect.missing_feature:
        yield Error(
            f"The database {alias!r} is too old for the outbox: it does not support {feature}.",
            hint="Upgrade it to PostgreSQL 15, MySQL 8.4, MariaDB 10.11 or SQLite 3.35, or newer.",
            id="django_outbox.E011",
        )
    settings, _ = parse_settings()
    publishers = settings.publishers if settings and not store.streams else {}
    for publisher_alias, source in sorted((alias, config.source) for alias, config in publishers.items()):
        if source == "table":
            continue
        yield Warning(
            f"OUTBOX['PUBLISHERS'][{publisher_alias!r}]['SOURCE'] is {source!r}, but the database {alias!r} is not "
            "PostgreSQL, so its messages are delivered from the table.",
            hint="Remove SOURCE.",
            id="django_outbox.W028",
        )
    if store.dialect.stores_local_times:
        yield Error(
            f"DATABASES[{alias!r}] has a TIME_ZONE, so Django stores local times there.",
            hint="Remove TIME_ZONE. The relay compares times with the database's clock in UTC.",
            id="django_outbox.E012",
        )
    yield from _check_characters(store.dialect)
    if isinstance(store, MySQLStore):
        yield from _check_server(store, settings)
    if sys.argv[1:2] == ["migrate"]:
        # Django runs the checks before it applies the migrations, so they are missing as a matter of course.
        return
    if unapplied := find_unapplied_migrations(connection):
        yield Warning(
            f"The database {alias!r} lacks {len(unapplied)} of the outbox's migrations, the first is {unapplied[0]}.",
            hint=f'Run "manage.py migrate --database={alias}".',
            id="django_outbox.W020",
        )
        return
    if settings and settings.from_log and isinstance(store, PostgreSQLStore):
        yield from _check_log(store, sorted(settings.from_log))
    # Other checks report wrong settings. The table may have been changed by hand.
    with suppress(DatabaseError, ImproperlyConfigured):
        for publisher in find_unknown_publishers(alias, get_settings().publishers):
            yield Warning(
                f"The database {alias!r} has pending messages of the publisher {publisher!r}, which is not in "
                "OUTBOX['PUBLISHERS'].",
                hint="Put it back into OUTBOX['PUBLISHERS'] until they are delivered. No relay delivers them without "
                "it.",
                id="django_outbox.W021",
            )
        # Only the database knows whether an unmanaged model is a view.
        yield from (_warn_of_link(link) for link in find_links(alias) if not link.model._meta.managed)
        if isinstance(store, PostgreSQLStore):
            yield from _check_postgresql(store)


def _check_postgresql(store: PostgreSQLStore) -> Iterator[CheckMessage]:
    """Check the table of messages: its autovacuum, its subscriptions and its sequence."""
    alias = store.connection.alias
    if rows := find_untuned_rows(store.connection, OutboxMessage._meta.db_table):
        yield Warning(
            f"Autovacuum has the server's settings for the table of messages in the database {alias!r}, which has "
            f"about {rows:,} rows. By default it comes when a fifth of them is dead, and claims become slower "
            "until then.",
            hint="Add the operation django_outbox.db.autovacuum.TuneAutovacuum to a migration of the project.",
            id="django_outbox.W068",
        )
    if subscriptions := store.find_subscriptions():
        yield Warning(
            f"The subscription {subscriptions[0]} writes messages of another server into the database {alias!r}. "
            "Relays of both servers deliver each of them, and no relay here delivers a stream.",
            hint="Stop the relays of the other server, wait until its messages have arrived, and run: "
            f"DROP SUBSCRIPTION {subscriptions[0]}",
            id="django_outbox.W067",
        )
    if behind := store.find_values_behind():
        yield Warning(
            f"The database {alias!r} gives new messages ids that are in use: its sequence is at {behind[0]}, "
            f"and the greatest id is {behind[1]}. Then enqueue() raises an IntegrityError.",
            hint=f'Run the SQL that "manage.py sqlsequencereset django_outbox --database={alias}" prints. Logical '
            "replication does not copy the values of sequences before PostgreSQL 19.",
            id="django_outbox.W029",
        )


def _check_server(store: MySQLStore, settings: OutboxSettings | None) -> Iterator[CheckMessage]:
    """Check settings of a server of MySQL or MariaDB that a relay cannot change."""
    alias, found = store.connection.alias, store.read_settings(*SERVER_SETTINGS)
    if (found["log_bin"], found["binlog_format"]) == ("ON", "STATEMENT"):
        yield Error(
            f"The server of the database {alias!r} has binlog_format = STATEMENT, with which it refuses all writes of "
            "relays, because their transactions are READ COMMITTED.",
            hint="Set binlog_format = ROW in the configuration of the server.",
            id="django_outbox.E064",
        )
    wanted = 2 * max(settings.max_payload_bytes if settings else 0, CHUNK_BYTES)
    if int(found["max_allowed_packet"]) < wanted:
        yield Warning(
            f"The server of the database {alias!r} has max_allowed_packet = {int(found['max_allowed_packet']):,}. It "
            "refuses larger statements, such as an INSERT of messages that enqueue() accepts.",
            hint=f"Set max_allowed_packet to at least {wanted:,} in the configuration of the server: twice "
            f"OUTBOX['MAX_PAYLOAD_BYTES'], and not less than {2 * CHUNK_BYTES:,}.",
            id="django_outbox.W065",
        )
    if found.get("wsrep_on") == "ON" or found.get("group_replication_single_primary_mode") == "OFF":
        yield Info(
            f"The server of the database {alias!r} is a node of a cluster with several primaries (Galera or Group "
            "Replication), which do not share row locks. That matters only if relays, or processes that pass "
            "lock_key=True, write to more than one node: then each message is delivered twice and out of order.",
            hint="Let all of them write to one node. Other processes may enqueue on any node.",
            id="django_outbox.I066",
        )


SERVER_SETTINGS = (
    "log_bin",
    "binlog_format",
    "max_allowed_packet",
    "wsrep_on",
    "group_replication_single_primary_mode",
)


def _check_log(store: PostgreSQLStore, publisher_aliases: Sequence[str]) -> Iterator[CheckMessage]:
    """Check that relays can read the log."""
    for obstacle in LogSetup(store).find_obstacles(len(publisher_aliases)):
        yield Warning(
            f"OUTBOX['PUBLISHERS'][{publisher_aliases[0]!r}]['SOURCE'] is 'log', but the database "
            f"{store.connection.alias!r} {obstacle.problem}. Its messages do not come from the log.",
            hint=obstacle.remedy,
            id=f"django_outbox.{obstacle.check}",
        )


def _check_characters(dialect: Dialect) -> Iterator[CheckMessage]:
    """Check that the database stores all characters."""
    if found := dialect.find_narrow_character_sets():
        yield Error(
            f"The outbox in the database {dialect.connection.alias!r} stores text as {', '.join(sorted(found))}, which "
            "lacks characters such as emoji: a message or an error that contains one cannot be stored.",
            hint=f"Run ALTER TABLE {OutboxMessage._meta.db_table} CONVERT TO CHARACTER SET utf8mb4, or, "
            "before `migrate`, ALTER DATABASE.",
            id="django_outbox.E013",
        )
    if dialect.encoding != "UTF8":
        yield Warning(
            f"The database {dialect.connection.alias!r} is encoded in {dialect.encoding}: enqueue() refuses the "
            "characters that this encoding lacks, and question marks replace them in broker errors.",
            hint="Convert it to UTF8: restore a pg_dump of it into a database created with ENCODING 'UTF8'.",
            id="django_outbox.W014",
        )
