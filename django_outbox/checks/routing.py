"""Check which databases and schemas have the tables of the outbox, without a query."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, router

from django_outbox.checks.registration import registered
from django_outbox.checks.settings import INBOX
from django_outbox.db.routing import describe_denied
from django_outbox.events import RecordsEvents
from django_outbox.models import OutboxMessage
from django_outbox.stores.schema import REQUIRED

TASKS = "django_outbox.contrib.django_tasks"


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
