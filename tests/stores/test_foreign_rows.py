"""Rows that other programs write: one that cannot be read fails with its reason, and does not affect others."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connections
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.brokers import memory
from django_outbox.messages import ACCEPTED, Outcome, rejected, retry_later
from django_outbox.relay import Relay
from django_outbox.signals import Failure, messages_failed
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import relays_in_threads
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
PUBLISHERS = {"default": SCRIPTED, "other": MEMORY}

SQLITE, POSTGRESQL, MARIADB, *_ = ALIASES

# MySQL takes no number into JSON that is larger than a double.
WITH_LARGE_NUMBERS = (SQLITE, POSTGRESQL, MARIADB)

DIGITS = "7" * 5000
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture(autouse=True)
def outbox(scripted: Script) -> Iterator[None]:
    memory.published.clear()
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}):
        yield


@pytest.fixture
def running() -> Iterator[Callable[..., Relay]]:
    with relays_in_threads(poll_interval=0.05) as start:
        yield start


def overwrite(using: str, id: int, column: str, sql: str) -> None:
    """Write an expression into a column, as another program would."""
    quote = connections[using].ops.quote_name
    with connections[using].cursor() as cursor:
        cursor.execute(f"UPDATE {quote(OutboxMessage._meta.db_table)} SET {quote(column)} = {sql} WHERE id = {id}")


def processed(using: str) -> set[int]:
    return set(OutboxMessage.objects.using(using).processed().values_list("id", flat=True))


def pending(using: str) -> bool:
    return OutboxMessage.objects.using(using).pending().exists()


def outcome_of(using: str, id: int) -> tuple[bool, str, str, int]:
    """Whether a message failed, and why. Other columns are not read because Django might fail to."""
    columns = ("failed_at", "error", "error_class", "attempts")
    failed_at, error, error_class, attempts = OutboxMessage.objects.using(using).values_list(*columns).get(id=id)
    return failed_at is not None, error, error_class, attempts


UNREADABLE: dict[str, tuple[str, str, str, str]] = {
    **{
        f"headers that are {kind} on {using}": (using, "headers", f"'{text}'", f"its JSON is of type {type}")
        for using in ALIASES
        for kind, text, type in (
            ("a list", "[1]", "list"),
            ("null", "null", "NoneType"),
            ("a string", '"x"', "str"),
            ("a number", "5", "int"),
        )
    },
    **{
        f"a header of 5,000 digits on {using}": (using, "headers", f"""'{{"n": {DIGITS}}}'""", "the limit (4300")
        for using in WITH_LARGE_NUMBERS
    },
    # Later versions read them.
    **(
        {"headers of 5,000 levels": (POSTGRESQL, "headers", f"""'{{"n": {DEEP}}}'""", "recursion")}
        if sys.version_info < (3, 12)
        else {}
    ),
    "a header with a lone surrogate": (SQLITE, "headers", """'{"n": ["\\uD83d"]}'""", "surrogates not allowed"),
    "a garbled message_id": (SQLITE, "message_id", "'garbage {id}'", "message_id cannot be read"),
    "a message_id of bytes": (SQLITE, "message_id", "CAST('ff{id}' AS BLOB)", "message_id cannot be read"),
    "a time with a 13th month": (SQLITE, "occurred_at", "'2026-13-45 00:00:00'", "occurred_at cannot be read"),
    "a time that is a word": (SQLITE, "occurred_at", "'2026, soon'", "not a time in the years 1 to 9999"),
    "a time that is not UTF-8": (SQLITE, "occurred_at", "CAST(x'32ff' AS TEXT)", "occurred_at cannot be read"),
    "a payload that is not UTF-8": (SQLITE, "payload", "CAST(x'22ff22' AS TEXT)", "payload cannot be read"),
    "headers that are not UTF-8": (SQLITE, "headers", "CAST(x'7b22ff223a317d' AS TEXT)", "headers cannot be read"),
    "a type that is not UTF-8": (SQLITE, "type", "CAST(x'74ff' AS TEXT)", "type cannot be read"),
    "a topic that is not UTF-8": (SQLITE, "topic", "CAST(x'74ff' AS TEXT)", "topic cannot be read"),
    "an error_class that is not UTF-8": (SQLITE, "error_class", "CAST(x'74ff' AS TEXT)", "error_class cannot be"),
}


@pytest.mark.parametrize(("using", "column", "sql", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_only_the_row_that_cannot_be_read_fails_and_with_its_reason(
    running: Callable[..., Relay], using: str, column: str, sql: str, reason: str, *, scripted: Script
):
    unkeyed, keyed = put(3, using), put(3, using, key="order-1")
    others = put(2, using, publisher="other")
    for id in (unkeyed[1], keyed[1]):
        overwrite(using, id, column, sql.replace("{id}", str(id)))
    running(using=using)
    eventually(lambda: not pending(using))
    for id in (unkeyed[1], keyed[1]):
        failed, error, error_class, attempts = outcome_of(using, id)
        assert (failed, error_class, attempts) == (True, "outbox.unreadable", 1)
        assert reason in error
        assert "777" not in error
    assert processed(using) == {unkeyed[0], unkeyed[2], keyed[0], keyed[2], *others}
    assert {*scripted.published()} == {unkeyed[0], unkeyed[2], keyed[0], keyed[2]}


@pytest.mark.parametrize(
    ("using", "text"), [*[(using, DIGITS) for using in WITH_LARGE_NUMBERS], (POSTGRESQL, DEEP)], ids=range(4)
)
def test_a_payload_of_any_number_of_digits_or_depth_is_delivered(
    running: Callable[..., Relay], using: str, text: str, *, scripted: Script
):
    (id,) = put(1, using)
    overwrite(using, id, "payload", f"'{text}'")
    running(using=using)
    eventually(lambda: processed(using) == {id})
    ((message,),) = scripted.batches
    assert message.payload == text.encode()


MAXIMUM = {SQLITE: 2**63 - 1, POSTGRESQL: 2**31 - 1, MARIADB: 2**32 - 1, "mysql": 2**32 - 1}


@pytest.mark.parametrize("answer", [ACCEPTED, rejected("never"), retry_later("busy")], ids=["yes", "never", "busy"])
def test_a_row_whose_attempts_are_at_the_maximum_is_settled(
    using: str, running: Callable[..., Relay], answer: Outcome, scripted: Script
):
    ids = put(3, using)
    scripted.answer = lambda message: answer if message.id == ids[1] else ACCEPTED
    overwrite(using, ids[1], "attempts", str(MAXIMUM[using]))
    others = put(2, using, publisher="other")
    running(using=using)
    eventually(lambda: not pending(using))
    failed, error, _, attempts = outcome_of(using, ids[1])
    assert (failed, error, attempts) == (answer is not ACCEPTED, answer.error, 2**31 - 1)
    assert processed(using) == {*ids, *others} - ({ids[1]} if failed else set())


@pytest.mark.parametrize("attempts", ["'many'", "x'00ff'", "1e300", "2.5"])
def test_attempts_of_any_type_in_sqlite_do_not_stop_delivery(running: Callable[..., Relay], attempts: str):
    ids = put(3, SQLITE)
    overwrite(SQLITE, ids[1], "attempts", attempts)
    running()
    eventually(lambda: processed(SQLITE) == {*ids})


REFUSED: dict[str, tuple[str, str]] = {
    "infinity": (POSTGRESQL, "'infinity'"),
    "the beginning of time": (POSTGRESQL, "'-infinity'"),
    "before Christ": (POSTGRESQL, "'0044-03-15 12:00:00 BC'"),
    "before 1000": (POSTGRESQL, "'0999-12-31 12:00:00'"),
    "after 9999": (POSTGRESQL, "'10000-01-02 00:00:00'"),
    "before 1000 on MariaDB": (MARIADB, "'0999-12-31 12:00:00'"),
    "a zero date on MariaDB": (MARIADB, "'0000-00-00 00:00:00'"),
    "a number in SQLite": (SQLITE, "2461366.5"),
    "before 1000 in SQLite": (SQLITE, "'0999-12-31 12:00:00'"),
}


@pytest.mark.parametrize("column", ["occurred_at", "available_at"])
@pytest.mark.parametrize(("using", "sql"), REFUSED.values(), ids=REFUSED)
def test_the_table_refuses_a_time_that_no_relay_could_read(using: str, sql: str, column: str):
    (id,) = put(1, using)
    with pytest.raises(DatabaseError):
        overwrite(using, id, column, sql)


def test_an_unreadable_row_blocks_its_key_if_failed_messages_do(using: str, running: Callable[..., Relay]):
    first = put(4, using, key="order-1")
    second = put(2, using, key="order-2")
    overwrite(using, first[1], "headers", "'[]'")
    overwrite(using, first[2], "headers", "'[]'")
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS, "FAILED_BLOCKS_KEY": True}):
        running(using=using)
        eventually(lambda: outcome_of(using, first[1])[0])
        eventually(lambda: processed(using) >= {first[0], *second})
        later = put(1, using, publisher="other")
        eventually(lambda: processed(using) >= {*later})
    assert processed(using) == {first[0], *second, *later}
    row = OutboxMessage.objects.using(using).filter(failed_at__isnull=False).order_by("id")
    assert row.values_list("id", "blocks_key").first() == (first[1], True)


def test_an_unreadable_row_is_signalled_with_its_readable_columns_and_has_no_copy(
    using: str, running: Callable[..., Relay]
):
    heard: list[Failure] = []

    def note(*, failures: list[Failure], **_: Any) -> None:
        heard.extend(failures)

    ids = put(2, using)
    overwrite(using, ids[0], "headers", "'[]'")
    messages_failed.connect(note)
    outbox = {"PUBLISHERS": {**PUBLISHERS, "dead": MEMORY}, "DEAD_LETTER_PUBLISHER": "dead"}
    try:
        with override_settings(OUTBOX=outbox):
            running(using=using)
            eventually(lambda: not pending(using))
            eventually(lambda: heard)
    finally:
        messages_failed.disconnect(note)
    (failure,) = heard
    assert (failure.message.id, failure.message.type, failure.message.payload) == (ids[0], "t", b"0")
    assert (failure.message.headers, failure.error_class, failure.dead_lettered) == ({}, "outbox.unreadable", False)
    assert memory.published == []


def test_unreadable_rows_do_not_close_a_breaker(running: Callable[..., Relay], using: str, scripted: Script):
    """The publisher is not called, so nothing is known about its broker."""
    ids = put(2, using)
    for id in ids:
        overwrite(using, id, "headers", "'[]'")
    with Relay(using=using, publishers=["default"]) as relay:
        tally = relay.drain()
    assert (tally.claimed, tally.failed, tally.unreadable, tally.answered) == (2, 2, 2, False)
    assert scripted.batches == []
