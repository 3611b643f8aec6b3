"""`manage.py outbox_requeue`: its filters on every database, its dry run, its errors, and what all commands ask."""

import datetime
import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.db.functions import MatchesPattern
from django_outbox.management.arguments import moment
from django_outbox.management.commands import outbox_requeue
from django_outbox.models import OutboxMessage, Status
from tests.conftest import ALIASES
from tests.support.admin.tools import put, statuses
from tests.support.messages import ago, row, rows
from tests.support.terminals import Terminal

pytestmark = pytest.mark.django_db(databases=ALIASES)


def run(using: str, *arguments: str, **streams: Any) -> str:
    out = io.StringIO()
    call_command("outbox_requeue", "--database", using, *arguments, **{"stdout": out, **streams})
    return out.getvalue()


def pending(using: str) -> list[int]:
    return list(OutboxMessage.objects.using(using).pending().order_by("id").values_list("id", flat=True))


def test_requeues_failed_messages_and_nothing_else(using: str):
    (failed,) = put(Status.FAILED, using=using, attempts=7, key="order-7", dead_lettered_at=ago(days=1))
    put(Status.PROCESSED, using=using)
    (waiting,) = put(Status.PENDING, using=using, attempts=3)
    OutboxMessage.objects.using(using).filter(id=failed).update(blocks_key=False)
    before = rows(using)
    assert run(using, "--all").splitlines()[-1] == "1 message requeued."
    after = rows(using)
    message = row(using, failed)
    assert (message.status, message.attempts, message.dead_lettered_at) == (Status.PENDING, 0, None)
    assert message.blocks_key
    assert pending(using) == sorted([failed, waiting])
    del before[failed], after[failed]
    assert after == before


class TestProcessed:
    @pytest.mark.parametrize(
        ("filters", "chosen"),
        [
            (["--all"], [0, 1, 2, 3]),
            (["--type", "order.*", "--key", "k"], [0, 1]),
            (["--after", "150m", "--before", "30m"], [1, 2]),
            (["--error-class", "*.Timeout"], []),
        ],
    )
    def test_requeues_processed_messages_by_the_same_filters(self, using: str, filters: list[str], chosen: list[int]):
        ids = [
            *put(Status.PROCESSED, using=using, key="k", age=3 * 3600),
            *put(Status.PROCESSED, using=using, key="k", age=2 * 3600),
            *put(Status.PROCESSED, using=using, key="k", type="invoice", age=3600),
            *put(Status.PROCESSED, using=using),
        ]
        put(Status.FAILED, using=using, key="k", age=2 * 3600)
        out = run(using, "--processed", *filters)
        assert pending(using) == [ids[n] for n in chosen]
        messages = f"message{'' if len(chosen) == 1 else 's'}"
        assert f"Found {len(chosen)} processed {messages}." in out.splitlines()
        assert (f"{len(chosen)} {messages} due again." in out.splitlines()) is bool(chosen)
        assert "requeued" not in out


def test_messages_are_chosen_by_several_patterns_of_types(using: str):
    for type in ("order.created", "Order.created", "orders", "invoice", "invoices"):
        put(Status.FAILED, using=using, type=type)
    run(using, "--type", "order.*", "--type", "invoice")
    assert [row(using, id).type for id in pending(using)] == ["order.created", "invoice"]


TEXT = st.text(alphabet="aAäéß%_!?[]^-\\'\"*. 🦡", max_size=6)


@given(text=TEXT, pattern=TEXT)
def test_a_pattern_means_the_same_on_every_database(text: str, pattern: str):
    for alias in ALIASES:
        messages = OutboxMessage.objects.using(alias)
        if not messages.update(type=text):
            messages.create(type=text, payload=1)
        assert messages.filter(MatchesPattern(F("type"), pattern)).exists() is _matches(text, pattern)


def _matches(text: str, pattern: str) -> bool:
    """The plainest way to say it: what is before the first star, and then any rest that fits what is behind it."""
    head, star, tail = pattern.partition("*")
    if not star:
        return text == pattern
    return text.startswith(head) and any(_matches(text[i:], tail) for i in range(len(head), len(text) + 1))


def test_an_error_class_is_matched_by_pattern_and_blank_is_none(using: str):
    ids = [
        *put(Status.FAILED, using=using, error_class="shop.Timeout"),
        *put(Status.FAILED, using=using, error_class="other.timeout"),
        *put(Status.FAILED, using=using),
    ]
    run(using, "--error-class", "*.Timeout", "--error-class", "")
    assert pending(using) == [ids[0], ids[2]]


def test_a_key_is_matched_exactly_in_every_partition_whether_it_is_blocked_or_not(using: str):
    """Another program may have chosen the partition."""
    ours, theirs, upper, blank, other = (
        *put(Status.FAILED, using=using, key="order-*"),
        *put(Status.FAILED, using=using, key="order-*"),
        *put(Status.FAILED, using=using, key="ORDER-*"),
        *put(Status.FAILED, using=using, key="order-* "),
        *put(Status.FAILED, using=using, key="order-8"),
    )
    table = OutboxMessage.objects.using(using)
    table.filter(id__in=[theirs, other]).update(partition=2**31 - 1)
    table.filter(id__in=[upper, blank]).update(partition=row(using, ours).partition)
    table.filter(id=ours).update(blocks_key=False)
    run(using, "--key", "order-*")
    assert pending(using) == [ours, theirs]


def test_a_publisher_is_chosen_by_its_alias(using: str, settings: Any):
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    settings.OUTBOX = {"PUBLISHERS": {"default": memory, "other": memory}}
    (chosen,), _ = put(Status.FAILED, using=using, publisher="other"), put(Status.FAILED, using=using)
    run(using, "--publisher", "other")
    assert pending(using) == [chosen]


@pytest.mark.parametrize(
    ("arguments", "positions"),
    [
        (["--after", "2h"], [2, 3]),
        (["--before", "2h"], [0, 1]),
        (["--after", "1d", "--before", "30m"], [1, 2]),
        (["--before", "1w"], []),
        (["--after", "{hours_2}"], [2, 3]),
        (["--before", "{hours_2}"], [0, 1]),
        (["--after", "{naive_2}", "--before", "30m"], [2]),
    ],
)
def test_times_are_taken_as_given_or_as_an_age(using: str, arguments: list[str], positions: list[int]):
    ids = [put(Status.FAILED, using=using, age=age)[0] for age in (172_800, 10_800, 3600, 60)]
    two_hours_ago = ago(hours=2)
    given = {"hours_2": two_hours_ago.isoformat(), "naive_2": timezone.localtime(two_hours_ago).replace(tzinfo=None)}
    run(using, *(argument.format(**given) for argument in arguments))
    assert pending(using) == [ids[position] for position in positions]


def test_a_limit_takes_the_messages_that_failed_first(using: str):
    newer, older = put(Status.FAILED, 2, using=using, age=60), put(Status.FAILED, 2, using=using, age=600)
    run(using, "--all", "--limit", "3")
    assert pending(using) == sorted([newer[0], *older])
    run(using, "--all", "--limit", "9" * 30)
    assert pending(using) == sorted([*newer, *older])


def test_a_dry_run_shows_what_would_be_requeued_and_changes_nothing(using: str):
    put(Status.FAILED, 3, using=using, age=7200, error_class="shop.Timeout")
    put(Status.FAILED, 2, using=using, age=60, type="order\npaid", key="order-7", blocks_key=True)
    put(Status.PENDING, using=using)
    before = rows(using)
    lines = run(using, "--dry-run").splitlines()
    assert rows(using) == before
    assert lines[0].split("  ")[0] == "type"
    oldest, newest = (
        timezone.localtime(before[id]["failed_at"]).isoformat(" ", "seconds") for id in list(before)[:3:2]
    )
    assert lines[1].split() == ["order.created", "shop.Timeout", "3", "0", *oldest.split(), *newest.split()]
    assert lines[2].split()[:4] == ["order\\npaid", "-", "2", "2"]
    assert lines[3:] == [
        "Found 5 failed messages, 2 of which block their key.",
        "This is a dry run: nothing was changed.",
    ]


def test_no_matching_message_is_not_an_error(using: str):
    assert (
        run(using, "--type", "no.such") == "Found 0 failed messages.\noutbox_status shows what has failed, by cause.\n"
    )


def test_a_quiet_run_prints_nothing(using: str):
    (id,) = put(Status.FAILED, using=using)
    assert run(using, "--all", "--verbosity", "0", stderr=Terminal()) == ""
    assert pending(using) == [id]


def test_many_are_requeued_in_batches_in_the_order_of_their_ids(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.models.message.BATCH_SIZE", 3)
    monkeypatch.setattr(outbox_requeue.Command, "read_size", 2)
    newer, older = put(Status.FAILED, 4, using=using, age=60), put(Status.FAILED, 4, using=using, age=600)
    err = Terminal()
    with CaptureQueriesContext(connections[using]) as queries:
        assert run(using, "--all", stderr=err).endswith("8 messages requeued.\n")
    updates = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    assert len(updates) == 3
    positions = [
        next(n for n, sql in enumerate(updates) if f" {id}," in sql or f"({id}," in sql or f" {id})" in sql)
        for id in newer + older
    ]
    assert positions == sorted(positions)
    assert all("failed_at" in sql.partition("WHERE")[2] for sql in updates)
    assert "8 found" in err.getvalue()
    assert "6 of 8 requeued" in err.getvalue()


def test_messages_that_leave_their_state_or_fail_after_the_question_are_left_alone(
    using: str, monkeypatch: pytest.MonkeyPatch
):
    ids, late = put(Status.FAILED, 3, using=using), []

    def confirm(*_: Any) -> bool:
        OutboxMessage.objects.using(using).filter(pk=ids[0]).update(failed_at=None, processed_at=timezone.now())
        late.extend(put(Status.FAILED, 2, using=using))
        return True

    monkeypatch.setattr(outbox_requeue.Command, "confirm", confirm)
    assert run(using, "--all").splitlines()[-2:] == [
        "2 messages requeued.",
        "1 message was no longer failed and was left alone.",
    ]
    assert row(using, ids[0]).status is Status.PROCESSED
    assert {row(using, id).status for id in late} == {Status.FAILED}


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (["outbox_requeue", "--all"], "Requeue 1 failed message?"),
        (
            ["outbox_requeue", "--processed", "--all"],
            "Deliver 1 processed message again? Consumers receive them again.",
        ),
        (["outbox_discard", "--all"], "Discard 1 failed message? They cannot be brought back."),
        (["outbox_purge"], "Delete 1 processed message older than 7 d?"),
    ],
)
@pytest.mark.parametrize(
    ("answer", "flags"), [("y\n", []), ("n\n", []), ("", []), ("n\n", ["--no-input"]), ("n\n", ["--noinput"])]
)
def test_on_a_terminal_each_command_asks_first(
    command: list[str], question: str, answer: str, flags: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    put(Status.FAILED)
    put(Status.PROCESSED, age=8 * 86_400)
    before, out = statuses(), io.StringIO()
    call_command(*command, *flags, stdout=out)
    assert (f"{question} [y/N]" in out.getvalue()) is (flags == [])
    assert (statuses() != before) is (answer == "y\n" or flags != [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Choose messages by a filter (--publisher, --type, --error-class"),
        (["--limit", "5"], "or use --all"),
        (["--all", "--type", "order.*"], "--all cannot be combined with a filter"),
        (["--database", "nowhere", "--all"], "There is no database 'nowhere'; DATABASES has default, "),
        (["--publisher", "nobody"], "There is no publisher 'nobody'; OUTBOX has default"),
        (
            ["--after", "yesterday"],
            "--after: 'yesterday' is not a valid time: use one such as 2026",
        ),
        (["--before", "2026-02-30"], "--before: '2026-02-30' is not a valid time"),
        (["--before", "2026-02-01T25:00"], "'2026-02-01T25:00' is not a valid time"),
        (["--before", "99999w"], "--before: '99999w' is more than a hundred years ago"),
        (["--all", "--limit", "0"], "--limit: '0' is not a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_reported_with_its_remedy(arguments: list[str], message: str):
    (id,) = put(Status.FAILED)
    with pytest.raises(CommandError) as info:
        call_command("outbox_requeue", *arguments)
    assert message in str(info.value)
    assert row("default", id).status is Status.FAILED


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-05-31", "2026-05-31T00:00:00+02:00"),
        ("2026-01-31T08:30", "2026-01-31T08:30:00+01:00"),
        ("2026-05-31 08:30:15.5Z", "2026-05-31T08:30:15.500000+00:00"),
        ("2026-05-31T08:30+05:30", "2026-05-31T08:30:00+05:30"),
    ],
)
def test_a_time_without_an_offset_is_in_the_current_time_zone(text: str, time: str):
    read = moment(text)
    assert isinstance(read, datetime.datetime)
    assert read.isoformat() == time
