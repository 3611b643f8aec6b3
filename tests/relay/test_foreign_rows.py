"""Rows that other programs wrote, in all columns at once: each one ends in a state, and holds up no other."""

import json
import uuid
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox import OutboxMessage
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, rejected, retry_later
from tests.conftest import ALIASES
from tests.publishers.test_foreign_messages import headers, payloads, texts
from tests.support.effects import HANDLERS, drain, scratch_handlers
from tests.support.publishers import SCRIPTED, Script

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

ANSWERS = {"yes": ACCEPTED, "no": rejected("\ud800\x00" * 3000), "later": retry_later("\udcff", retry_after=1e300)}

jsons = payloads.map(lambda payload: payload.decode("utf-8", "replace"))
moments = st.sampled_from(["1000-01-01 00:00:00", "2026-01-01 00:00:00.000001", "9998-12-31 00:00:00", "0", ""])
times = st.none() | moments
numbers = st.sampled_from([0, 1, -1, 2**31 - 1, 2**32 - 1, 2**63 - 1, -(2**63)])
rows = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["yes", "no", "later"]) | texts,
        "key": st.sampled_from(["", "k"]) | texts,
        "payload": jsons,
        "publisher": st.sampled_from(["default", "handlers", "leased", "unknown", ""]),
    },
    optional={
        "topic": texts,
        "headers": jsons | headers.map(json.dumps) | st.sampled_from(['{"\\ud800": 1}', '{"a": "\\udfff"}']),
        "attempts": numbers,
        "partition": numbers,
        "occurred_at": times,
        # NULL is the value of messages that a stream delivers.
        "available_at": moments,
        "first_error_at": times,
        "last_error_at": times,
        "dead_lettered_at": times,
        "error": texts,
        "error_class": texts,
        "history": jsons,
        "original": jsons,
    },
)


DEFAULTS = {"attempts": 0, "error": "", "error_class": ""}


def insert(using: str, row: dict[str, Any]) -> int | None:
    """Insert a row as another program would; return its id, or None if the database refuses it."""
    connection = connections[using]
    message_id = uuid.uuid4()
    has_key = row["key"] != ""
    values = {"headers": "{}", "topic": "", "partition": int(has_key), "blocks_key": has_key, **DEFAULTS, **row}
    values["message_id"] = str(message_id) if connection.features.has_native_uuid_field else message_id.hex
    names = ", ".join(map(connection.ops.quote_name, values))
    places = ", ".join(["%s"] * len(values))
    table = connection.ops.quote_name(OutboxMessage._meta.db_table)
    try:
        with transaction.atomic(using=using), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", [*values.values()])
            cursor.execute(f"SELECT max(id) FROM {table}")
            return int(cursor.fetchone()[0])
    except (DatabaseError, ValueError, OverflowError):
        return None


STATE = ("publisher", "partition", "available_at", "processed_at", "failed_at", "error")


def test_each_row_ends_in_a_state_and_holds_up_no_other(using: str, scripted: Script):
    scripted.answer = lambda message: ANSWERS.get(message.type, ACCEPTED)
    leased = {**HANDLERS, "OPTIONS": {"transaction": False}}
    publishers = {"default": SCRIPTED, "handlers": HANDLERS, "leased": leased}

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(rows, min_size=1, max_size=10))
    def check(given: list[dict[str, Any]]) -> None:
        table = connections[using].ops.quote_name(OutboxMessage._meta.db_table)
        with connections[using].cursor() as cursor:
            cursor.execute(f"DELETE FROM {table}")
        foreign = [id for row in given if (id := insert(using, row)) is not None]
        plain = {"type": "yes", "key": "", "payload": "1"}
        others = [insert(using, {**plain, "publisher": alias}) for alias in publishers]
        drain(using)
        places = ", ".join(map(connections[using].ops.quote_name, STATE))
        with connections[using].cursor() as cursor:
            cursor.execute(f"SELECT id, {places} FROM {table}")
            found = {id: dict(zip(STATE, state, strict=True)) for id, *state in cursor.fetchall()}
        assert all(found[id]["processed_at"] for id in others)
        for id in foreign:
            state = found[id]
            is_due = state["publisher"] in publishers and "9998" not in str(state["available_at"])
            waits = state["partition"] != 0 and any(
                (other["publisher"], other["partition"]) == (state["publisher"], state["partition"])
                and not (other["processed_at"] or other["failed_at"])
                for earlier, other in found.items()
                if earlier < id
            )
            assert state["processed_at"] or state["error"] or not is_due or waits, state

    with override_settings(OUTBOX={"PUBLISHERS": publishers}), scratch_handlers():
        for type in ANSWERS:
            handler(type)(lambda event, message: ANSWERS[message.type])
        check()
