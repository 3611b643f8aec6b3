"""An index that uses the features of each database, without warnings about missing ones."""

from collections.abc import Sequence
from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.migrations.operations import AddIndex
from django.db.models import Q


class PortableIndex(models.Index):
    """Partial and covering if the database supports that, otherwise a full index on the same columns.

    Django's own `Index` does the same, but warns about it at every `migrate` on SQLite, MySQL and MariaDB (models.W037,
    models.W040), although these columns are chosen to serve those databases too.

    Args:
        else_first: columns with which the full index begins, so that it finds the rows that `where` selects.
        else_last: columns with which the full index ends, for index-only scans.
        only_on: the only kind of database that has rows for the index, where `AddIndexOn` creates it; all by default.
    """

    def __init__(
        self,
        *,
        where: Q,
        covering: Sequence[str] = (),
        else_first: Sequence[str] = (),
        else_last: Sequence[str] = (),
        only_on: str = "",
        fields: Sequence[str],
        name: str,
    ) -> None:
        super().__init__(fields=fields, name=name)
        self.where = where
        self.covering = tuple(covering)
        self.else_first = tuple(else_first)
        self.else_last = tuple(else_last)
        self.only_on = only_on

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Statement:
        features = schema_editor.connection.features
        full = [*self.else_first, *self.fields, *self.else_last]
        index = models.Index(
            fields=self.fields if features.supports_partial_indexes else full,
            name=self.name,
            condition=self.where if features.supports_partial_indexes else None,
            include=self.covering if features.supports_covering_indexes else None,
        )
        return index.create_sql(model, schema_editor, using, **kwargs)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, kwargs = super().deconstruct()
        kwargs["where"] = self.where
        for name in ("covering", "else_first", "else_last", "only_on"):
            if value := getattr(self, name):
                kwargs[name] = value
        return path, args, kwargs


class AddIndexOn(AddIndex):
    """Add an index to one kind of database only."""

    def __init__(self, model_name: str, index: PortableIndex) -> None:
        super().__init__(model_name, index)
        self._vendor = index.only_on

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor == self._vendor:
            super().database_forwards(app_label, schema_editor, *states)

    def database_backwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any) -> None:
        if schema_editor.connection.vendor == self._vendor:
            super().database_backwards(app_label, schema_editor, *states)
