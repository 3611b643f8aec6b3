"""Errors from outside on their way to the log: one line, no row of the database, and nothing that can raise."""

import logging
import traceback
from collections.abc import Callable
from unicodedata import category

import pytest
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.messages import Message, Outcome, rejected
from django_outbox.relay import Relay
from django_outbox.utils.logs import logger
from django_outbox.utils.text import MAX_LENGTH, describe, one_line, stand_in
from tests.support.publishers import Script, ScriptedPublisher
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

MARKER = "4111-1111-1111-1111"

DETAIL = f'new row violates check constraint "x"\nDETAIL:  Failing row contains (1, {MARKER}).'


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" connection refused\r\n", "connection refused"),
        ("first\nERROR forged", r"first\nERROR forged"),
        ("\x1b[2J\x1b[31mred", r"\u001b[2J\u001b[31mred"),
        ("a\u2028b\x85c\u202ed", r"a\u2028b\u0085c\u202ed"),
        ("lone \ud83d", r"lone \ud83d"),
        ("Zürich → 東京", "Zürich → 東京"),
        (DETAIL, 'new row violates check constraint "x"'),
        (ValueError(DETAIL), 'new row violates check constraint "x"'),
        (IntegrityError("primary\nDETALLE:  La fila contiene (1)"), "primary"),
        (Unprintable(), "its text cannot be read (SystemExit)"),
        (None, "None"),
        (10**5000, "its text cannot be read (ValueError)"),
    ],
    ids=range(13),
)
def test_the_text_of_an_error_is_on_one_line(text: object, line: str):
    assert one_line(text) == line


@given(st.text() | st.binary() | st.text(alphabet="\n\x1b DETAIL:x", max_size=3000), st.integers(1, 50))
def test_any_text_is_bounded_and_printable(text: object, length: int):
    line = one_line(text, length)
    assert len(line) <= length
    assert all(each.isprintable() or category(each) == "Zs" for each in line)


def test_an_exception_is_described_by_its_class_and_text():
    assert describe(KeyError("a bug")) == "KeyError: 'a bug'"
    assert describe(KeyError()) == "KeyError"
    assert describe(Unprintable()) == "Unprintable: its text cannot be read (SystemExit)"
    assert len(describe(ValueError("x" * 10**6))) == MAX_LENGTH


def raised(error: BaseException, *causes: BaseException) -> BaseException:
    """An error that was raised from others, with the tracebacks of this function."""
    try:
        try:
            if causes:
                raise raised(*causes)
        except BaseException as cause:
            raise error from cause
        raise error
    except BaseException as caught:
        return caught


def test_the_stand_in_of_an_error_shows_its_traceback_without_the_texts():
    error = raised(IntegrityError(DETAIL), ValueError(f"one\ntwo {MARKER}\nDETAIL: {MARKER}"), Unprintable())
    shown = "".join(traceback.format_exception(stand_in(error)))
    assert 'django.db.utils.IntegrityError: new row violates check constraint "x"\n' in shown
    assert r"ValueError: one\ntwo" in shown
    assert "Unprintable: its text cannot be read (SystemExit)" in shown
    assert shown.count("in raised") == 5
    assert f"Failing row contains (1, {MARKER})" not in shown


def test_the_stand_in_of_a_recursion_error_is_short():
    def first(depth: int) -> None:
        second(depth)

    def second(depth: int) -> None:
        first(depth + 1)

    with pytest.raises(RecursionError) as caught:
        first(0)
    shown = "".join(traceback.format_exception(stand_in(caught.value)))
    assert "in test_the_stand_in" in shown
    assert len(shown) < 5000


def test_a_ring_of_errors_ends():
    first, second = ValueError("a"), KeyError("b")
    first.__context__, second.__context__ = second, first
    assert "KeyError: 'b'" in "".join(traceback.format_exception(stand_in(first)))


# The log


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """All that was logged, by any logger, formatted and with tracebacks."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "django_outbox")
    return lambda: caplog.text


def test_a_line_of_the_log_names_the_function_that_logged_it(caplog: pytest.LogCaptureFixture):
    logger.warning("Publisher %r: %s", "shop", "a\nb")
    (record,) = caplog.records
    assert record.funcName == "test_a_line_of_the_log_names_the_function_that_logged_it"
    assert record.getMessage() == r"Publisher 'shop': a\nb"


def test_a_placeholder_shows_the_field_of_its_name(lines: Callable[[], str]):
    text = "%(subject)s: %(count)s messages (%(reason)s)"
    logger.warning(text, event="e", subject="Publisher 'shop'", count=1234, reason="a\nb")
    assert "Publisher 'shop': 1,234 messages (a\\nb)" in lines()


def test_the_exception_in_hand_is_logged_without_its_text(lines: Callable[[], str]):
    try:
        raise ValueError(DETAIL)
    except ValueError:
        logger.exception("It failed")
    assert "ValueError: new row violates" in lines()
    assert MARKER not in lines()


SCRIPTED = "tests.support.publishers.ScriptedPublisher"


class Writing(ScriptedPublisher):
    """Writes the payload into a table that refuses it, as a handler of the project may."""

    using = ""

    def publish(self, messages: list[Message]) -> list[Outcome]:  # type: ignore[override]
        for message in messages:
            OutboxMessage.objects.using(self.using).create(type="copy", payload=message.payload.decode(), key="k")
        return []


CONSTRAINTS = {
    "settling": "processed_at IS NULL OR publisher <> 'default'",
    "failing": "failed_at IS NULL OR publisher <> 'default'",
    "publishing": "type <> 'copy'",
}


@pytest.mark.django_db(databases=["default", "postgresql", "mariadb"], transaction=True)
@pytest.mark.parametrize("using", ["postgresql", "mariadb"])
@pytest.mark.parametrize("place", CONSTRAINTS)
def test_no_row_that_the_database_refuses_is_quoted_in_the_log(
    using: str, place: str, lines: Callable[[], str], monkeypatch: pytest.MonkeyPatch, scripted: Script
):
    monkeypatch.setattr(Writing, "using", using)
    if place == "failing":
        scripted.answer = lambda message: rejected("never")
    backend = {"BACKEND": f"{__name__}.Writing" if place == "publishing" else SCRIPTED}
    outbox = {"PUBLISHERS": {"default": backend, "other": {"BACKEND": SCRIPTED}}}
    connection = connections[using]
    alter = f"ALTER TABLE {OutboxMessage._meta.db_table}"
    with connection.cursor() as cursor:
        cursor.execute(f"{alter} ADD CONSTRAINT outbox_marker CHECK ({CONSTRAINTS[place]})")
    try:
        with (
            override_settings(OUTBOX=outbox),
            relays_in_threads(using=using, poll_interval=0.05, limits=QUICK) as start,
        ):
            with transaction.atomic(using=using):
                enqueue_many(
                    [
                        OutboxMessage(type="t", payload=MARKER, headers={"card": MARKER}, publisher=publisher)
                        for publisher in ("default", "other")
                    ],
                    using=using,
                )
            relay: Relay = start()
            eventually(lambda: lines().count("outbox_marker") > 1)
            settled = "failed" if place == "failing" else "processed"
            eventually(lambda: getattr(relay.tally, settled) == 1)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"{alter} DROP CONSTRAINT outbox_marker")
    assert MARKER not in lines()
    message = OutboxMessage.objects.using(using).get(publisher="default", processed_at=None)
    # A published message that the database does not let become processed fails.
    assert bool(message.failed_at) is (place == "settling")
    assert message.attempts == (place == "settling")
    assert MARKER not in message.error
