"""The contract of claim and settle, tested on every database."""

import datetime
import json
import logging
import os
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_outbox import InvalidMessage, OutboxMessage, enqueue
from django_outbox.messages import MAX_ERROR_LENGTH
from django_outbox.models import Status
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.rows import MAX_HISTORY_ERROR_LENGTH
from tests.conftest import ALIASES, LOCKING
from tests.support.messages import ago, claim, claimed_ids, row, rows, settle, store_of, write

pytestmark = pytest.mark.django_db(databases=ALIASES)


class Undo(Exception):
    pass


def due_since(using: str, id: int, **duration: float) -> None:
    OutboxMessage.objects.using(using).filter(id=id).update(available_at=ago(**duration))


class TestClaim:
    def test_messages_due_longest_come_first_and_ids_decide_between_equal_times(self, using: str):
        a, b, c, d = write(using, 4)
        OutboxMessage.objects.using(using).update(available_at=ago(minutes=1))
        due_since(using, c, minutes=3)
        due_since(using, d, minutes=2)
        assert claimed_ids(using) == [c, d, a, b]

    def test_messages_of_a_publisher_whose_name_differs_only_in_case_are_not_claimed(self, using: str):
        (mine,) = write(using)
        other, shouted = write(using, 2)
        table = OutboxMessage.objects.using(using)
        table.filter(id=other).update(publisher="other")
        table.filter(id=shouted).update(publisher="DEFAULT")
        assert claimed_ids(using) == [mine]
        assert claimed_ids(using, "DEFAULT") == [shouted]
        assert claimed_ids(using, "nobody") == []

    @pytest.mark.parametrize("characters", [1000, 300])
    def test_the_first_message_is_claimed_at_any_size_and_none_after_the_limit_in_bytes(
        self, using: str, characters: int
    ):
        ids = write(using, 5, payload="x" * characters)
        size = characters + len('""') + len("{}")
        assert claimed_ids(using, max_bytes=1) == ids[:1]
        assert claimed_ids(using, max_bytes=size) == ids[:1]
        assert claimed_ids(using, max_bytes=size + 1) == ids[:2]
        assert claimed_ids(using, max_bytes=2 * size) == ids[:2]
        assert claimed_ids(using, max_bytes=100 * size) == ids

    def test_the_limit_in_bytes_counts_headers_and_bytes_not_characters(self, using: str):
        ids = write(using, 3, headers={"a": "\N{PILE OF POO}" * 300})
        assert claimed_ids(using, max_bytes=1200) == ids[:1]
        assert claimed_ids(using, max_bytes=20_000) == ids

    def test_a_claimed_message_is_what_was_enqueued(self, using: str):
        id = uuid.uuid4()
        with transaction.atomic(using=using):
            saved = enqueue(
                "order.created", {"b": "é\N{PILE OF POO}", "a": [1.5]}, key="k", topic="t", headers={"h": {"x": 1}},
                message_id=id, using=using,
            )  # fmt: skip
        with claim(using) as batch:
            (message,) = batch.messages
        assert (message.id, message.message_id, message.type) == (saved.pk, str(id), "order.created")
        assert (message.topic, message.key, message.headers, message.attempts) == ("t", "k", {"h": {"x": 1}}, 0)
        assert json.loads(message.payload) == {"b": "é\N{PILE OF POO}", "a": [1.5]}
        assert message.occurred_at == saved.occurred_at
        assert message.occurred_at.utcoffset() == datetime.timedelta(0)

    def test_three_kilobytes_of_random_text_and_the_longest_names_fit_into_the_indexes(self, using: str):
        text = os.urandom(1500).hex()
        longest = "\N{PILE OF POO}" * 63
        with transaction.atomic(using=using):
            enqueue(longest, text, key=longest, topic=longest, using=using)
        with claim(using) as batch:
            (message,) = batch.messages
            assert (message.type, message.key, json.loads(message.payload)) == (longest, longest, text)
            settle(using, batch, processed=[message.id])

    @pytest.mark.parametrize("error", [Undo, KeyboardInterrupt, SystemExit])
    def test_an_exception_gives_the_whole_batch_back_unchanged(self, using: str, error: type[BaseException]):
        write(using, 3)
        before = rows(using)
        with pytest.raises(error), claim(using, limit=2) as batch:
            assert len(batch.messages) == 2
            raise error
        assert rows(using) == before

    def test_an_exception_after_settling_gives_the_batch_back_if_the_claim_is_a_transaction(self, using: str):
        write(using)
        before = rows(using)
        with pytest.raises(Undo), claim(using) as batch:
            settle(using, batch, processed=[batch.messages[0].id])
            raise Undo
        assert (rows(using) == before) is (using in LOCKING)

    def test_a_wrong_clock_and_time_zone_of_the_process_do_not_affect_a_claim(
        self, using: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        ahead = timezone.now() + datetime.timedelta(days=3650)
        try:
            with (
                mock.patch("django.utils.timezone.now", return_value=ahead),
                mock.patch("time.time", return_value=ahead.timestamp()),
            ):
                (due,) = write(using)
                (later,) = write(using, delay=3600)
                with claim(using) as batch:
                    assert [message.id for message in batch.messages] == [due]
                    settle(using, batch, retried=[(due, "", 3600.0)])
        finally:
            monkeypatch.undo()
            time.tzset()
        for id in (due, later):
            assert ago(hours=-0.9) < row(using, id).available_at < ago(hours=-1.1)  # type: ignore[operator]

    @pytest.mark.parametrize("sign", ["+", "-"])
    def test_the_time_zone_of_the_session_does_not_affect_a_claim(self, using: str, sign: str):
        statement = {"mysql": f"SET time_zone = '{sign}09:00'", "postgresql": f"SET LOCAL TIME ZONE {sign}9"}
        vendor = connections[using].vendor
        if vendor in statement:
            with connections[using].cursor() as cursor:
                cursor.execute(statement[vendor])
        try:
            (due,) = write(using)
            write(using, delay=3600)
            with claim(using) as batch:
                (message,) = batch.messages
                assert abs(message.occurred_at - timezone.now()) < datetime.timedelta(minutes=5)
                settle(using, batch, failed=[(due, "")])
            assert abs(row(using, due).failed_at - timezone.now()) < datetime.timedelta(minutes=5)  # type: ignore[operator]
        finally:
            if vendor == "mysql":
                with connections[using].cursor() as cursor:
                    cursor.execute("SET time_zone = '+00:00'")


WAYS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "processed": lambda ids: {"processed": ids},
    "deleted": lambda ids: {"processed": ids, "delete_processed": True},
    "failed": lambda ids: {"failed": [(id, "no") for id in ids]},
    "retried": lambda ids: {"retried": [(id, "later", 60.0) for id in ids]},
}


class TestSettle:
    def test_each_state_is_written_and_unanswered_messages_go_back_unchanged(self, using: str):
        done, failed, retried, unanswered = write(using, 4)
        OutboxMessage.objects.using(using).filter(id=unanswered).update(attempts=4, error="old")
        OutboxMessage.objects.using(using).filter(id=done).update(attempts=1, error="old")
        before = row(using, unanswered)
        with claim(using) as batch:
            settle(using, batch, processed=[done], failed=[(failed, "refused")], retried=[(retried, "busy", 60.0)])
        assert vars(row(using, unanswered)) | {"_state": 0} == vars(before) | {"_state": 0}
        assert (row(using, done).status, row(using, done).attempts, row(using, done).error) == (Status.PROCESSED, 2, "")
        assert (row(using, failed).status, row(using, failed).attempts, row(using, failed).error) == (
            Status.FAILED, 1, "refused",
        )  # fmt: skip
        again = row(using, retried)
        assert (again.status, again.attempts, again.error) == (Status.PENDING, 1, "busy")
        assert ago(seconds=-30) < again.available_at < ago(seconds=-90)  # type: ignore[operator]
        assert claimed_ids(using) == [unanswered]

    @pytest.mark.parametrize(
        ("error", "kept"),
        [
            ("", ""),
            ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
            ('\N{PILE OF POO} é \ud800 "quoted" \\ %s {} \' \n\x01', '\N{PILE OF POO} é ? "quoted" \\ %s {} \' \n\x01'),
            ("x" * 10**6, "x" * (MAX_ERROR_LENGTH - 1) + "…"),
            ("\N{PILE OF POO}" * MAX_ERROR_LENGTH, "\N{PILE OF POO}" * MAX_ERROR_LENGTH),
        ],
        ids=range(5),
    )
    def test_any_error_can_be_stored(self, using: str, error: str, kept: str):
        failed, retried = write(using, 2)
        with claim(using) as batch:
            settle(using, batch, failed=[(failed, error)], retried=[(retried, error, 0.001)])
        for message in (row(using, failed), row(using, retried)):
            assert message.error == kept
            assert [attempt["error"] for attempt in message.history or []] == [kept[:MAX_HISTORY_ERROR_LENGTH]]

    def test_a_large_batch_of_long_errors_is_one_statement_that_the_server_accepts(self, using: str):
        ids = write(using, 1000)
        with claim(using) as batch, CaptureQueriesContext(connections[using]) as queries:
            settle(using, batch, failed=[(id, "\N{PILE OF POO}\x01'" * 2000) for id in ids])
        assert _statements(queries) == 1
        assert OutboxMessage.objects.using(using).failed().count() == 1000

    @pytest.mark.parametrize("key", ["", "order-7"])
    @pytest.mark.parametrize("outcome", WAYS)
    def test_a_row_that_is_no_longer_pending_is_left_unchanged_and_logged(
        self, using: str, key: str, outcome: str, caplog: pytest.LogCaptureFixture
    ):
        """Another program deletes one message and fails another while a relay has claimed them."""
        ids = write(using, 3, key=key)
        messages = OutboxMessage.objects.using(using)
        with claim(using) as batch:
            messages.filter(id=ids[0]).delete()
            messages.filter(id=ids[1]).update(available_at=None, failed_at=ago(days=1), error="by hand")
            with caplog.at_level(logging.ERROR, "django_outbox"):
                settle(using, batch, **WAYS[outcome](ids))
        assert not messages.filter(id=ids[0]).exists()
        assert (row(using, ids[1]).status, row(using, ids[1]).error) == (Status.FAILED, "by hand")
        assert [message.attempts for message in messages.filter(id=ids[2])] == ([] if outcome == "deleted" else [1])
        assert "2 of 3 claimed messages" in caplog.text

    @pytest.mark.parametrize("delay", [1e-9, 0.25, 31_536_000 * 1.5])
    def test_any_delay_can_be_stored(self, using: str, delay: float):
        (id,) = write(using)
        with claim(using) as batch:
            settle(using, batch, retried=[(id, "", delay)])
        expected = timezone.now() + datetime.timedelta(seconds=delay)
        assert abs(row(using, id).available_at - expected) < datetime.timedelta(minutes=1)  # type: ignore[operator]

    def test_a_batch_costs_a_fixed_number_of_statements(self, using: str):
        """One statement for each state and those of the claim, whatever the number of messages."""
        ids = write(using, 40)
        with CaptureQueriesContext(connections[using]) as queries, claim(using) as batch:
            claiming = _statements(queries)
            settle(
                using, batch,
                processed=ids[:10],
                failed=[(id, "no") for id in ids[10:20]],
                retried=[(id, "later", 60.0) for id in ids[20:30]],
            )  # fmt: skip
        # The SQLite claim looks whether anything is pending, forgets old leases, reads and leases, and puts back what
        # was not answered; that of MySQL and MariaDB finds, locks and reads. Each looks for messages with a key, too.
        vendor = connections[using].vendor
        assert claiming == {"sqlite": 5, "postgresql": 2, "mysql": 4}[vendor]
        assert _statements(queries) - claiming == {"sqlite": 4, "postgresql": 3, "mysql": 3}[vendor]

    def test_a_batch_of_keys_costs_a_fixed_number_of_statements(self, using: str):
        for number in range(3):
            write(using, 10, key=f"k{number}")
        claimed_ids(using)
        with CaptureQueriesContext(connections[using]) as queries, claim(using) as batch:
            claiming = _statements(queries)
            settle(using, batch, processed=[message.id for message in batch.messages])
        assert len(batch.messages) == 30
        # One looks for messages without a key; PostgreSQL owns keys with one more and reads with another.
        vendor = connections[using].vendor
        assert claiming == {"sqlite": 8, "postgresql": 3, "mysql": 5}[vendor]
        assert _statements(queries) - claiming == {"sqlite": 2, "postgresql": 1, "mysql": 1}[vendor]

    def test_an_empty_poll_is_two_statements(self, using: str):
        """One reads unkeyed messages, one lists heads; SQLite checks whether any message is pending."""
        with CaptureQueriesContext(connections[using]) as queries:
            claimed_ids(using)
        assert _statements(queries) == (1 if using == "default" else 2)


def _statements(queries: CaptureQueriesContext) -> int:
    passed_over = ("SAVEPOINT", "RELEASE", "ROLLBACK", "BEGIN", "COMMIT", "SET ")
    return sum(not query["sql"].lstrip().upper().startswith(passed_over) for query in queries.captured_queries)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def exactly(text: str | bytes) -> Any:
    """Decode JSON but keep the text of its numbers, because 1e23 equals the same number written in digits."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=json_values, headers=st.dictionaries(st.text(max_size=5), json_values, max_size=3), name=st.text())
@example(payload={"": {"\\u0000": "\ud800"}}, headers={}, name="a")
@example(payload=[1e308, -0.0, 5e-324, 2**64, -(10**300)], headers={"é": None}, name="\\")
@example(payload="\x00", headers={}, name="\x00")
def test_any_value_is_read_back_unchanged_or_refused(using: str, payload: Any, headers: dict[str, Any], name: str):
    with transaction.atomic(using=using):
        try:
            saved = enqueue(name, payload, headers=headers, key=name, using=using)
        except InvalidMessage:
            return
    with claim(using) as batch:
        (message,) = [message for message in batch.messages if message.id == saved.pk]
        assert exactly(message.payload) == exactly(json.dumps(payload))
        assert exactly(json.dumps(message.headers)) == exactly(json.dumps(headers)) or message.headers == headers
        assert (message.type, message.key) == (name, name)
        settle(using, batch, processed=[message.id], delete_processed=True)


def test_one_query_finds_due_messages_in_at_most_100_schemas():
    write("postgresql")
    store = store_of("postgresql")
    assert isinstance(store, PostgreSQLStore)
    with CaptureQueriesContext(connections["postgresql"]) as queries:
        assert [*store.find_due_schemas(["public"] * 250, ["default", "other"])] == [("public", "default")] * 250
    assert [query["sql"].count("EXISTS") for query in queries] == [100, 100, 50]
