"""Tables with foreign keys to messages: of a model, and of SQL that Django does not know."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.db import connections, models

from django_outbox.models import OutboxMessage

APP = "contenttypes"
"""Only the models of an installed app are related to others."""


@contextmanager
def link_model(
    on_delete: Any = models.CASCADE, *, managed: bool = True, **options: Any
) -> Iterator[type[models.Model]]:
    """A model with a foreign key to messages, which has no table yet."""
    meta = type("Meta", (), {"app_label": APP, "default_related_name": "+", "managed": managed})
    key = models.ForeignKey(OutboxMessage, on_delete, **options)
    model = type("Link", (models.Model,), {"__module__": __name__, "Meta": meta, "message": key})
    try:
        yield model
    finally:
        del apps.all_models[APP]["link"]
        apps.clear_cache()


@contextmanager
def linked_by_model(using: str, ids: Sequence[int]) -> Iterator[None]:
    """A model whose rows refer to these messages; on_delete would delete the rows."""
    with link_model() as model:
        with connections[using].schema_editor() as editor:
            editor.create_model(model)
        try:
            model._base_manager.using(using).bulk_create(model(message_id=id) for id in ids)
            yield
        finally:
            with connections[using].schema_editor() as editor:
                editor.delete_model(model)


@contextmanager
def linked_by_sql(using: str, ids: Sequence[int]) -> Iterator[None]:
    """A table that Django does not know, whose rows refer to these messages."""
    connection = connections[using]
    table, key = (
        connection.ops.quote_name(OutboxMessage._meta.db_table),
        connection.data_types["BigAutoField"].split()[0],
    )
    create = (
        f"CREATE TABLE outbox_link (message_id {key}, FOREIGN KEY (message_id) REFERENCES {table} (id))"
        if connection.vendor == "mysql"
        else f"CREATE TABLE outbox_link (message_id {key} REFERENCES {table} (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    with connection.cursor() as cursor:
        for statement in (create, *(f"INSERT INTO outbox_link VALUES ({id})" for id in ids)):
            cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE outbox_link")
