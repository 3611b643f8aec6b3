"""PostgreSQL's autovacuum on the table of messages: a migration operation that sets it, and a test of a big table."""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

__all__ = ["TuneAutovacuum"]

SETTINGS = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 20_000,
    "autovacuum_vacuum_insert_scale_factor": 0,
    "autovacuum_vacuum_insert_threshold": 100_000,
    "autovacuum_vacuum_cost_delay": 0,
}

BIG = 1_000_000
"""Rows from which on a fifth of the table, after which autovacuum comes by default, is too many dead rows."""

FIND_UNTUNED = """
SELECT reltuples::bigint FROM pg_class
WHERE oid = to_regclass(%s) AND relkind = 'r' AND reltuples >= %s
    AND coalesce(array_to_string(reloptions, ' '), '') !~ 'autovacuum_vacuum_(scale_factor|threshold)'
"""


class TuneAutovacuum(Operation):
    """Vacuum the table of messages after 20,000 dead rows, and after 100,000 new ones, instead of after a fifth of it.

    The migration must depend on `("django_outbox", "0001_initial")`. It neither rewrites the table nor blocks readers
    or writers. Reversing the migration restores the server's own settings. It does nothing on other databases, and
    where a router keeps the table out. A partitioned table has no such settings: set them on its partitions.
    """

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models stay as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        settings = ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())
        self._alter(schema_editor, to_state, f"SET ({settings})")

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        self._alter(schema_editor, to_state, f"RESET ({', '.join(SETTINGS)})")

    def describe(self) -> str:
        return "Tune autovacuum for the table of messages"

    def _alter(self, schema_editor: BaseDatabaseSchemaEditor, state: Any, change: str) -> None:
        connection = schema_editor.connection
        model = state.apps.get_model("django_outbox", "OutboxMessage")
        if connection.vendor == "postgresql" and self.allow_migrate_model(connection.alias, model):
            schema_editor.execute(f"ALTER TABLE {schema_editor.quote_name(model._meta.db_table)} {change}")


def find_untuned_rows(connection: BaseDatabaseWrapper, table: str) -> int:
    """Return the estimated rows of a big table of PostgreSQL without settings for autovacuum; 0 if it is not one."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(FIND_UNTUNED, [connection.ops.quote_name(table), BIG])
        row = cursor.fetchone()
    return row[0] if row else 0
