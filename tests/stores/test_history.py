"""The history of a message: its newest failed attempts, written when a batch is settled."""

import datetime
import json
from typing import Any

import pytest
from django.db import connections

from django_outbox.models import MAX_HISTORY, OutboxMessage
from django_outbox.stores import Retried
from tests.conftest import ALIASES
from tests.support.messages import claim, row, settle, write

pytestmark = pytest.mark.django_db(databases=ALIASES)


def retry(using: str, id: int, error: str, error_class: str = "", *, counted: bool = True) -> None:
    """Claim the message and settle it as retried, due at once."""
    with claim(using) as batch:
        settle(using, batch, retried=[Retried(id, error, 0.0, error_class, counted)])


def history(using: str, id: int) -> list[tuple[str, str]]:
    return [(attempt["error_class"], attempt["error"]) for attempt in row(using, id).history or []]


def test_each_failed_attempt_is_kept_with_the_newest_first(using: str):
    (id,) = write(using)
    retry(using, id, "busy", "shop.Busy")
    retry(using, id, "still busy", "shop.Busy")
    with claim(using) as batch:
        settle(using, batch, failed=[(id, "gone", "shop.Gone")])
    assert history(using, id) == [("shop.Gone", "gone"), ("shop.Busy", "still busy"), ("shop.Busy", "busy")]


def test_an_attempt_has_its_time_by_the_clock_of_the_database(using: str):
    (id,) = write(using)
    retry(using, id, "busy")
    (attempt,) = row(using, id).history or []
    at = datetime.datetime.fromisoformat(attempt["at"].replace("Z", "+00:00"))
    assert abs(at - row(using, id).last_error_at) < datetime.timedelta(seconds=1)  # type: ignore[operator]


def test_only_the_newest_attempts_are_kept(using: str):
    (id,) = write(using)
    kept = [{"at": "2026-05-31T00:00:00Z", "error_class": "", "error": str(n)} for n in range(MAX_HISTORY)]
    OutboxMessage.objects.using(using).filter(pk=id).update(history=kept)
    retry(using, id, "new")
    assert [error for _, error in history(using, id)] == ["new", *(attempt["error"] for attempt in kept[:-1])]


def test_an_attempt_that_was_not_counted_is_left_out(using: str):
    """A message whose queue is full may be set aside every few seconds, for hours."""
    (id,) = write(using)
    retry(using, id, "the queue is full", counted=False)
    assert row(using, id).history is None
    retry(using, id, "busy")
    retry(using, id, "the queue is full", counted=False)
    assert history(using, id) == [("", "busy")]


def test_a_delivered_message_keeps_its_earlier_errors_and_writes_none(using: str):
    first, second = write(using, 2)
    with claim(using) as batch:
        settle(using, batch, processed=[second], retried=[(first, "busy", 0.0)])
    with claim(using) as batch:
        settle(using, batch, processed=[first])
    assert history(using, first) == [("", "busy")]
    assert row(using, second).history is None


@pytest.mark.parametrize("value", [{}, {"at": 1}, 7, "text", [], [1, "two", None]], ids=range(6))
def test_a_message_is_settled_whatever_another_program_wrote_as_its_history(using: str, value: Any):
    (id,) = write(using)
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {connection.ops.quote_name(OutboxMessage._meta.db_table)} SET history = %s WHERE id = %s",
            [json.dumps(value), id],
        )
    retry(using, id, "busy")
    assert row(using, id).error == "busy"
    with claim(using) as batch:
        settle(using, batch, failed=[(id, "gone")])
    assert row(using, id).failed_at is not None
