"""What names a database, and the routers that keep the tables of models out of it."""

from collections.abc import Sequence

from django.apps import apps
from django.db import connections, router
from django.db.models import Model


def describe_denied(alias: str, models: Sequence[type[Model]]) -> str:
    """Return a sentence that names the model that a router denies, with the remedy; empty if all are allowed."""
    denied = next((model for model in models if not router.allow_migrate_model(alias, model)), None)
    if denied is None:
        return ""
    app = denied._meta.app_label
    # The engine of django-tenants. Its router decides by the schema of the connection.
    if schema := getattr(connections[alias], "schema_name", ""):
        return (
            f"DATABASE_ROUTERS do not allow the model {denied._meta.label} in the schema {schema!r}. Run "
            '"manage.py tenant_command run_outbox --schema=..." for each schema that has the table, and enqueue there, '
            f"or add {app!r} to SHARED_APPS."
        )
    if any(router.allow_migrate_model(alias, model) for model in apps.get_app_config(app).get_models()):
        table = denied._meta.db_table
        remedy = f'the statements for the table {table!r} of "manage.py sqlmigrate {app} 0001 --database={alias}".'
    else:
        remedy = f'"manage.py migrate --database={alias} --fake {app} zero" and "manage.py migrate --database={alias}".'
    return (
        f"a router of DATABASE_ROUTERS does not allow the model {denied._meta.label} there, so migrate creates no "
        f"table. Let its allow_migrate() return True for the app {app!r} on {alias!r}. Then run {remedy}"
    )


def database_key(using: str) -> tuple[str, ...]:
    """Return what names a database: a test's has the alias of the project's, and each tenant may have its schema."""
    connection = connections[using]
    return using, str(connection.settings_dict["NAME"]), getattr(connection, "schema_name", "")
