"""Foreign keys to messages. Messages are deleted by SQL, so Django's `on_delete` does not apply, and constraints do."""

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connections, router
from django.db.models import Exists, ForeignKey, ManyToOneRel, OuterRef, Q

from django_outbox.models.message import OutboxMessage


def find_links(using: str | None = None) -> "Sequence[ForeignKey[Any, Any]]":
    """Return the foreign keys whose rows keep messages from being deleted, in this database or in any.

    It looks in the database for their tables each time, if there are any keys: a migration may create a table while
    the process runs, and tenants may have tables of their own.
    """
    links = [
        relation.field
        for relation in OutboxMessage._meta.get_fields(include_hidden=True)
        if isinstance(relation, ManyToOneRel)
        and relation.field.db_constraint  # type: ignore[attr-defined]
        # Django 6.1 has the functions DB_CASCADE and DB_SET_NULL, which the database calls.
        and not hasattr(relation.on_delete, "on_delete_sql")
    ]
    if using is None:
        # The others may be views.
        return [link for link in links if link.model._meta.managed]
    links = [link for link in links if router.allow_migrate_model(using, link.model)]
    if not links:
        return []
    with connections[using].cursor() as cursor:
        tables = {table.casefold() for table in connections[using].introspection.table_names(cursor)}
    # A name with its schema is not listed.
    return [
        link for link in links if link.model._meta.db_table.casefold() in tables or "." in link.model._meta.db_table
    ]


def find_linked(using: str, ids: Collection[int]) -> set[int]:
    """Return the messages among these that rows of other tables refer to."""
    return {
        id
        for link in find_links(using)
        for id in link.model._base_manager.using(using)
        .filter(**{f"{link.attname}__in": ids})
        .order_by()
        .values_list(link.attname, flat=True)
    }


def is_linked(using: str) -> Q:
    condition = Q(pk__in=())
    for link in find_links(using):
        condition |= Q(Exists(link.model._base_manager.using(using).filter(**{link.attname: OuterRef("pk")})))
    return condition


def name_links(using: str) -> str:
    return ", ".join(sorted({link.model._meta.label for link in find_links(using)}))
