"""Rows of which the database refuses changes."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from django_outbox import OutboxMessage

SETTLED = "(NEW.processed_at IS NOT NULL OR NEW.failed_at IS NOT NULL OR NEW.error <> OLD.error)"
"""The condition of a trigger for a message that gets a new state."""

RAISE = {
    "postgresql": "RAISE EXCEPTION 'frozen by accounting'",
    "sqlite": "SELECT RAISE(ABORT, 'frozen by accounting')",
    "mysql": "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'frozen by accounting'",
}


def table(using: str) -> str:
    return connections[using].ops.quote_name(OutboxMessage._meta.db_table)


def run_sql(using: str, *statements: str) -> None:
    with connections[using].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def refusing(using: str, condition: str, body: str = "", *, event: str = "UPDATE", name: str = "") -> Iterator[None]:
    """A trigger that refuses changes of some messages.

    Args:
        body: what the trigger does instead of raising an exception.
        name: another table.
    """
    vendor, name = connections[using].vendor, name or table(using)
    body = body or RAISE[vendor]
    trigger = f"CREATE TRIGGER outbox_refuse BEFORE {event} ON {name} FOR EACH ROW"
    drop = ["DROP TRIGGER outbox_refuse"]
    if vendor == "postgresql":
        create = [
            f"CREATE FUNCTION outbox_refuse() RETURNS trigger AS $$ BEGIN {body}; END $$ LANGUAGE plpgsql",
            f"{trigger} WHEN ({condition}) EXECUTE FUNCTION outbox_refuse()",
        ]
        drop = [f"DROP TRIGGER outbox_refuse ON {name}", "DROP FUNCTION outbox_refuse"]
    elif vendor == "sqlite":
        create = [f"{trigger} WHEN {condition} BEGIN {body}; END"]
    else:
        create = [f"{trigger} IF {condition} THEN {body}; END IF"]
    run_sql(using, *create)
    try:
        yield
    finally:
        run_sql(using, *drop)


@contextmanager
def restricted(using: str, changes: str = "USING (true) WITH CHECK (payload <> '2'::jsonb)") -> Iterator[None]:
    """A role for new connections, with all rights, and a policy by which it can change other messages only."""
    role = f"outbox_{uuid.uuid4().hex[:8]}"
    options = connections[using].settings_dict["OPTIONS"]
    run_sql(
        using,
        f"CREATE ROLE {role}",
        f"GRANT {role} TO CURRENT_USER",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
        f"ALTER TABLE {table(using)} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY outbox_open ON {table(using)} FOR SELECT TO {role} USING (true)",
        f"CREATE POLICY outbox_frozen ON {table(using)} FOR UPDATE TO {role} {changes}",
    )
    options["assume_role"] = role
    try:
        yield
    finally:
        del options["assume_role"]
        run_sql(
            using,
            f"DROP POLICY outbox_frozen ON {table(using)}",
            f"DROP POLICY outbox_open ON {table(using)}",
            f"ALTER TABLE {table(using)} DISABLE ROW LEVEL SECURITY",
            f"DROP OWNED BY {role}",
            f"DROP ROLE {role}",
        )


def is_payload(using: str, number: int) -> str:
    """Return the condition of a trigger for the messages with this payload."""
    return {"postgresql": f"OLD.payload = '{number}'::jsonb", "default": f"OLD.payload = '{number}'"}.get(
        using, f"OLD.payload = {number}"
    )
