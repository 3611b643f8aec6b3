"""Check the settings `OUTBOX` and `USE_TZ`.

`django_outbox.conf` finds E001 to E005 and E023, `django_outbox.brokers.registry` finds E006 to E008, and
`django_outbox.celery.configuration` finds E030 to W032.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.files.storage import storages
from django.utils.module_loading import import_string

from django_outbox.brokers.registry import build_publisher
from django_outbox.checks.registration import of_settings, registered
from django_outbox.conf import OutboxSettings, SettingsProblem, parse_settings
from django_outbox.conf.routes import find_unreachable
from django_outbox.utils.text import one_line

INBOX = "django_outbox.inbox"

CELERY_PUBLISHER = "django_outbox.brokers.celery.CeleryPublisher"

STORAGE = (
    '"ALIAS": {"BACKEND": "django.core.files.storage.FileSystemStorage", '
    '"OPTIONS": {"location": "/var/lib/shop/outbox"}}'
)


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
    for pattern, earlier in find_unreachable(settings.routes):
        yield Warning(
            f"The pattern {pattern!r} in OUTBOX['ROUTES'] never applies, because {earlier!r} comes first and matches "
            "the same types.",
            hint="Write narrow patterns before wide ones, or remove it.",
            id="django_outbox.W023",
        )


@of_settings
def check_inbox(settings: OutboxSettings) -> Iterator[CheckMessage]:
    if settings.consumers and not apps.is_installed(INBOX):
        yield Warning(
            "OUTBOX has CONSUMERS, but the app that runs them is not installed.",
            hint="Add 'django_outbox.inbox' to INSTALLED_APPS, and run \"manage.py migrate\".",
            id="django_outbox.W035",
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
            hint="Messages contain personal data. Name a private storage instead: "
            f"{STORAGE.replace('ALIAS', 'outbox_archive')}.",
            id="django_outbox.W019",
        )


@registered
def check_time_zone() -> Iterator[CheckMessage]:
    """Check that times are stored in UTC, because they are compared with the database's clock."""
    if not django_settings.USE_TZ:
        yield Error(
            "The outbox requires USE_TZ = True.",
            hint="Set USE_TZ = True. Without it Django stores local times, but the relay compares them in UTC.",
            id="django_outbox.E009",
        )
