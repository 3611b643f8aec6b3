"""System checks of the settings and the databases. Each message has an ID, and a hint with the remedy.

`django_outbox.conf` finds E001 to E005 and E023, `django_outbox.brokers.registry` finds E006 to E008,
`django_outbox.events.checks` checks events, `django_outbox.celery.configuration` finds E030 to W031, and this module
finds the others.
"""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import storages
from django.db import DatabaseError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.brokers.registry import build_publisher
from django_outbox.conf import OutboxSettings, SettingsProblem, parse
from django_outbox.conf.routes import find_unreachable
from django_outbox.deployment import find_unapplied_migrations, find_unknown_publishers
from django_outbox.events.checks import find_mistakes as find_event_mistakes
from django_outbox.handlers.checks import find_mistakes as find_handler_mistakes
from django_outbox.handlers.checks import find_unreachable as find_unreachable_handlers
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import registry
from django_outbox.models import OutboxMessage
from django_outbox.stores import Store, find_store
from django_outbox.text import counted, one_line

DISTRIBUTION = "django-transactional-outbox"
"""The name of this package on PyPI."""

TAG = "django_outbox"
"""Selects the checks of this app: `manage.py check --tag django_outbox`."""


CELERY_PUBLISHER = "django_outbox.brokers.celery.CeleryPublisher"


def _read_settings() -> OutboxSettings | None:
    """Return the settings; None if they are wrong, which `check_settings` reports."""
    settings, _ = parse(getattr(django_settings, "OUTBOX", None))
    return settings


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check every key and value of `OUTBOX`, and that every publisher can be constructed."""
    settings, problems = parse(getattr(django_settings, "OUTBOX", None))
    for publisher_alias, config in settings.publishers.items() if settings else ():
        try:
            build_publisher(publisher_alias, config)
        except SettingsProblem as problem:
            problems.append(problem)
    return [Error(problem.message, hint=problem.hint, id=f"django_outbox.{problem.check_id}") for problem in problems]


@register(TAG)
def check_redaction(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the function that redacts payloads can be imported and called."""
    settings = _read_settings()
    if settings is None or settings.redact is None:
        return []
    try:
        problem = "" if callable(import_string(settings.redact)) else "it cannot be called"
    except Exception as error:
        problem = one_line(error)
    if not problem:
        return []
    return [
        Error(
            f"OUTBOX['REDACT'] is {settings.redact!r}, which cannot be used: {problem}",
            hint="Give the dotted path of a function that takes type, payload and headers, and returns payload and "
            "headers. Until then the admin hides both.",
            id="django_outbox.E070",
        )
    ]


@register(TAG)
def check_payload_sizes(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that each publisher's broker takes every payload that `enqueue` does."""
    settings = _read_settings()
    found: list[CheckMessage] = []
    for publisher_alias, config in settings.publishers.items() if settings else ():
        # `check_settings` reports a publisher that cannot be constructed.
        with suppress(SettingsProblem):
            limit = build_publisher(publisher_alias, config).max_payload_bytes
            if settings is not None and limit is not None and limit < settings.max_payload_bytes:
                found.append(
                    Warning(
                        f"The publisher {publisher_alias!r} takes messages of at most {limit:,} bytes, but "
                        f"OUTBOX['MAX_PAYLOAD_BYTES'] is {settings.max_payload_bytes:,}.",
                        hint=f"Set MAX_PAYLOAD_BYTES to at most {limit:,}, or larger messages fail after the commit.",
                        id="django_outbox.W026",
                    )
                )
    return found


@register(TAG)
def check_celery(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that each `OutboxTask` of the Celery apps has a publisher that sends it."""
    settings = _read_settings()
    if settings is None or not _uses_celery(settings):
        return []
    from django_outbox.celery.configuration import find_problems  # noqa: PLC0415 - needs Celery

    return [
        (Error if problem.check_id.startswith("E") else Warning)(
            problem.message, hint=problem.hint, id=f"django_outbox.{problem.check_id}"
        )
        for problem in find_problems(settings)
    ]


def _uses_celery(settings: OutboxSettings) -> bool:
    """Return whether there may be tasks. If not, Celery need not be installed."""
    if "django_outbox.celery.task" in sys.modules:
        return True
    # Nothing has imported the Celery app yet.
    backends = [config.backend for config in settings.publishers.values()]
    return CELERY_PUBLISHER in backends and find_spec("celery") is not None


@register(TAG)
def check_routes(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that every pattern of `ROUTES` can apply."""
    settings = _read_settings()
    return [
        Warning(
            f"The pattern {pattern!r} in OUTBOX['ROUTES'] never applies, because {earlier!r} comes first and matches "
            "the same types.",
            hint="Write narrow patterns before wide ones, or remove it.",
            id="django_outbox.W023",
        )
        for pattern, earlier in find_unreachable({} if settings is None else settings.routes)
    ]


@register(TAG)
def check_inbox(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the app with the command for the consumers is installed."""
    settings = _read_settings()
    if settings is None or not settings.consumers or apps.is_installed("django_outbox.inbox"):
        return []
    return [
        Warning(
            "OUTBOX has CONSUMERS, but the app that runs them is not installed.",
            hint="Add 'django_outbox.inbox' to INSTALLED_APPS, and run \"manage.py migrate\".",
            id="django_outbox.W035",
        )
    ]


@register(TAG)
def check_events(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the classes of events: types, keys, upgrades, fields and publishers."""
    settings = _read_settings()
    return [] if settings is None else list(find_event_mistakes(settings.publishers))


@register(TAG)
def check_archive(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check, without a request to it, that the archive's storage can be used and receives something."""
    settings = _read_settings()
    if settings is None or settings.archive is None:
        return []
    problems: list[CheckMessage] = []
    alias = settings.archive.storage
    try:
        storages[alias]
    except Exception as error:
        # A storage's constructor may raise any exception.
        known = ", ".join(sorted(django_settings.STORAGES))
        problems.append(
            Error(
                f"OUTBOX['ARCHIVE']['storage'] is {alias!r}, which is not usable: {one_line(error).rstrip('.')}.",
                hint=f"Define it in STORAGES, which has {known}. For a folder: {STORAGE.replace('ALIAS', alias)}.",
                id="django_outbox.E017",
            )
        )
    if settings.deletes_processed:
        problems.append(
            Error(
                "OUTBOX has an ARCHIVE, but its RETENTION is timedelta(0): processed messages are deleted as soon as "
                "they are delivered, and never archived.",
                hint="Set RETENTION to a time, such as timedelta(hours=1), or remove ARCHIVE.",
                id="django_outbox.E018",
            )
        )
    if alias in {"default", "staticfiles"}:
        problems.append(
            Warning(
                f"OUTBOX['ARCHIVE'] uses STORAGES[{alias!r}]. Its files are usually served to the public.",
                hint="Messages contain personal data. Define a private storage: "
                f"{STORAGE.replace('ALIAS', 'outbox_archive')}.",
                id="django_outbox.W019",
            )
        )
    return problems


STORAGE = (
    '"ALIAS": {"BACKEND": "django.core.files.storage.FileSystemStorage", '
    '"OPTIONS": {"location": "/var/lib/shop/outbox"}}'
)


@register(TAG)
def check_handlers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the local handlers, and the publishers that write in the transaction of the claim."""
    problems = [*find_handler_mistakes(registry)]
    settings = _read_settings()
    if settings is None:
        return problems
    backends = {alias: _import_backend(config.backend) for alias, config in settings.publishers.items()}
    calling = [alias for alias, backend in backends.items() if issubclass(backend, HandlersPublisher)]
    if calling:
        problems += find_unreachable_handlers(registry, settings, calling)
    elif [*registry]:
        problems.append(
            Warning(
                f"{counted(len([*registry]), 'local handler')} registered, but OUTBOX['PUBLISHERS'] has no "
                "HandlersPublisher, so none is called.",
                hint='Add "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}.',
                id="django_outbox.W025",
            )
        )
    alias = settings.dead_letter_publisher
    if alias is not None and issubclass(backends[alias], TransactionalPublisher):
        problems.append(
            Error(
                f"OUTBOX['DEAD_LETTER_PUBLISHER'] is {alias!r}, which takes no copies of failed messages: it delivers "
                "messages of the outbox only.",
                hint="Name the publisher of a broker, or use the signal messages_failed.",
                id="django_outbox.E027",
            )
        )
    return problems


def _import_backend(path: str) -> type:
    try:
        backend = import_string(path)
    except ImportError:
        # Reported by the check of the settings.
        return object
    return backend if isinstance(backend, type) else object


@register(TAG)
def check_time_zone(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that times are stored in UTC, because they are compared with the database's clock."""
    if django_settings.USE_TZ:
        return []
    return [
        Error(
            "The outbox requires USE_TZ = True.",
            hint="Set USE_TZ = True. Without it Django stores local times, but the relay compares them in UTC.",
            id="django_outbox.E009",
        )
    ]


@register(TAG)
def check_autocommit(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check, without a query, that each database that may hold the outbox commits automatically."""
    return [
        Error(
            f"DATABASES[{alias!r}] has AUTOCOMMIT = False, so a relay would never commit the messages' new state.",
            hint="Remove AUTOCOMMIT and use transaction.atomic() or ATOMIC_REQUESTS, or route OutboxMessage elsewhere.",
            id="django_outbox.E015",
        )
        for alias in connections
        if not connections[alias].settings_dict["AUTOCOMMIT"] and router.allow_migrate_model(alias, OutboxMessage)
    ]


LIBPQ_TIMEOUTS = (
    '{"connect_timeout": 5, "tcp_user_timeout": 8000, "keepalives_idle": 5, "keepalives_interval": 2, '
    '"keepalives_count": 3}'
)


@register(TAG)
def check_distribution(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check, by the lists of installed files, that no other distribution owns files of this package."""
    package = Path(__file__).parent
    return [
        Error(
            f"The distribution {name!r} has installed files into {package.name}/, too. One has overwritten files of "
            "the other.",
            hint=f'Run "pip uninstall {name} {DISTRIBUTION}", then "pip install {DISTRIBUTION}".',
            id="django_outbox.E029",
        )
        for name in _owners(package)
        if re.sub(r"[-_.]+", "-", name).lower() != DISTRIBUTION
    ]


def _owners(package: Path) -> list[str]:
    """Return the names of the distributions that have installed files into the folder of a package."""
    # Reading one list as text takes a quarter of a millisecond; packages_distributions() takes many times as long.
    installed = distributions(path=[str(package.parent)])
    return [str(each.name) for each in installed if f"\n{package.name}/" in f"\n{each.read_text('RECORD') or ''}"]


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
        and (missing := store.missing_timeouts)
    ]


@register(TAG, Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check that the relay can work on each database that holds the outbox."""
    problems: list[CheckMessage] = []
    for alias in databases or []:
        if router.allow_migrate_model(alias, OutboxMessage):
            store = find_store(connections[alias])
            if store is None:
                problems += _unknown_vendor(connections[alias])
            else:
                problems += _check_store(store) + _check_migrations(connections[alias])
    return problems


def _unknown_vendor(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    return [
        Error(
            f"The outbox does not support the database {connection.alias!r} (vendor {connection.vendor!r}).",
            hint="Route OutboxMessage to a PostgreSQL, MySQL, MariaDB or SQLite database.",
            id="django_outbox.E010",
        )
    ]


def _check_store(store: Store) -> list[CheckMessage]:
    checks = (_check_version, _check_sources, _check_utc, _check_characters, _check_encoding)
    return [problem for check in checks for problem in check(store)]


def _check_version(store: Store) -> list[CheckMessage]:
    feature = store.missing_feature
    if not feature:
        return []
    return [
        Error(
            f"The database {store.connection.alias!r} is too old for the outbox: it does not support {feature}.",
            hint="Upgrade it to PostgreSQL 15, MySQL 8.4, MariaDB 10.11 or SQLite 3.35, or newer.",
            id="django_outbox.E011",
        )
    ]


def _check_sources(store: Store) -> list[CheckMessage]:
    settings = _read_settings()
    if store.streams or settings is None:
        return []
    return [
        Warning(
            f"OUTBOX['PUBLISHERS'][{publisher_alias!r}]['SOURCE'] is 'snapshot', but the database "
            f"{store.connection.alias!r} is not PostgreSQL, so its messages are delivered from the table.",
            hint="Remove SOURCE.",
            id="django_outbox.W028",
        )
        for publisher_alias in sorted(settings.streamed)
    ]


def _check_utc(store: Store) -> list[CheckMessage]:
    if not store.stores_local_times:
        return []
    return [
        Error(
            f"DATABASES[{store.connection.alias!r}] has a TIME_ZONE, so Django stores local times there.",
            hint="Remove TIME_ZONE. The relay compares times with the database's clock in UTC.",
            id="django_outbox.E012",
        )
    ]


def _check_characters(store: Store) -> list[CheckMessage]:
    found = store.find_narrow_character_sets()
    if not found:
        return []
    return [
        Error(
            f"The outbox in the database {store.connection.alias!r} stores text as {', '.join(sorted(found))}, which "
            "lacks characters such as emoji: a message or an error that contains one cannot be stored.",
            hint=f"Run ALTER TABLE {OutboxMessage._meta.db_table} CONVERT TO CHARACTER SET utf8mb4, or, "
            "before `migrate`, ALTER DATABASE.",
            id="django_outbox.E013",
        )
    ]


def _check_encoding(store: Store) -> list[CheckMessage]:
    if store.encoding == "UTF8":
        return []
    return [
        Warning(
            f"The database {store.connection.alias!r} is encoded in {store.encoding}: enqueue() refuses the characters "
            "that this encoding lacks, and question marks replace them in broker errors.",
            hint="Convert it to UTF8: restore a pg_dump of it into a database created with ENCODING 'UTF8'.",
            id="django_outbox.W014",
        )
    ]


def _check_migrations(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    """Check that the tables are up to date, and, if they are, that every pending message has its publisher."""
    if sys.argv[1:2] == ["migrate"]:
        # Django runs the checks before it applies the migrations, so they are missing as a matter of course.
        return []
    unapplied = find_unapplied_migrations(connection)
    if unapplied:
        return [
            Warning(
                f"The database {connection.alias!r} lacks {len(unapplied)} of the outbox's migrations, the first is "
                f"{unapplied[0]}.",
                hint=f'Run "manage.py migrate --database={connection.alias}".',
                id="django_outbox.W020",
            )
        ]
    return _check_pending_messages(connection.alias)


def _check_pending_messages(alias: str) -> list[CheckMessage]:
    try:
        unknown = find_unknown_publishers(alias)
    except (DatabaseError, ImproperlyConfigured):
        # Other checks report wrong settings. The table may have been changed by hand.
        return []
    return [
        Warning(
            f"The database {alias!r} has pending messages of the publisher {publisher!r}, which is not in "
            "OUTBOX['PUBLISHERS'].",
            hint="Put it back into OUTBOX['PUBLISHERS'] until they are delivered. No relay delivers them without it.",
            id="django_outbox.W021",
        )
        for publisher in unknown
    ]
