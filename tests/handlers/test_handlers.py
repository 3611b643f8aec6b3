"""Local handlers: what they write is committed together with the message's new state, or not at all."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.utils import translation

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import Reject, RetryLater, handler
from django_outbox.messages import BLOCKED, Message, Outcome, class_path, rejected, retry_later, set_aside, unanswered
from django_outbox.models import Status
from django_outbox.relay import Relay
from django_outbox.signals import messages_failed
from django_outbox.stores.clock import read_clock
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, deliver_once, drain, drain_all, effects, leave, states
from tests.support.messages import put
from tests.support.signals import received

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


def settings(retry: dict[str, Any] | None = None, **options: Any) -> override_settings:
    entry = {**HANDLERS, "OPTIONS": options, "RETRY": {**HANDLERS["RETRY"], **(retry or {})}}
    return override_settings(OUTBOX={"PUBLISHERS": {"default": entry}})


def test_a_handler_gets_the_payload_and_the_message(using: str):
    calls: list[tuple[Any, Message]] = []

    @handler("order.created")
    def note(payload: Any, message: Message) -> None:
        calls.append((payload, message))

    with transaction.atomic(using=using):
        enqueue("order.created", {"id": 7}, key="order-7", topic="x", headers={"a": 1}, using=using)
    drain(using)
    ((payload, message),) = calls
    assert payload == {"id": 7}
    assert (message.type, message.key, message.topic, message.headers) == ("order.created", "order-7", "x", {"a": 1})


def test_what_a_handler_writes_is_committed_with_the_state_of_its_message(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        assert connections[using].in_atomic_block

    put(45, using, keys=3)
    drain(using)
    assert sorted(effects(using), key=int) == [str(n) for n in range(45)]
    assert states(using) == [Status.PROCESSED] * 45


def test_a_handler_that_raises_leaves_no_effect_and_is_called_again(using: str):
    calls: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        calls.append(payload)
        if payload == 1 and calls.count(1) < 3:
            raise ValueError("not yet")

    put(3, using)
    drain_all(using)
    assert sorted(effects(using)) == ["0", "1", "2"]
    assert (calls.count(0), calls.count(1), calls.count(2)) == (1, 3, 1)
    assert [message.attempts for message in OutboxMessage.objects.using(using).order_by("id")] == [1, 3, 1]


@pytest.mark.parametrize(
    ("outcome", "status", "attempts"),
    [
        (retry_later("the bank is closed"), Status.PENDING, 1),
        (set_aside("the bank is closed", 60), Status.PENDING, 0),
        (rejected("no such account"), Status.FAILED, 1),
        (unanswered("no answer"), Status.PENDING, 1),
    ],
    ids=["retry_later", "set_aside", "rejected", "unanswered"],
)
def test_a_handler_may_return_an_outcome_and_then_leaves_no_effect(
    using: str, outcome: Outcome, status: Status, attempts: int
):
    @handler("t")
    def work(payload: Any, message: Message) -> Outcome:
        leave(using, payload)
        return outcome

    put(1, using)
    deliver_once(using)
    (message,) = OutboxMessage.objects.using(using)
    assert (message.status, message.attempts) == (status, attempts)
    assert effects(using) == []


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ([retry_later("not yet")], "returned several outcomes for one message; return one outcome: retry_later(), "),
        (BLOCKED, "returned an outcome 'blocked'; return one outcome: retry_later(), "),
        (Outcome("deferred"), "returned an Outcome with a kind of type str"),  # type: ignore[arg-type]
    ],
    ids=["list", "reserved kind", "wrong kind"],
)
def test_a_wrong_outcome_is_an_error_that_names_the_handler(using: str, returned: object, error: str):
    @handler("t", name="shop.pay")
    def work(payload: Any, message: Message) -> object:
        return returned

    put(1, using)
    deliver_once(using)
    (message,) = OutboxMessage.objects.using(using)
    assert message.status == Status.PENDING
    assert message.error.startswith(f"TypeError: the handler shop.pay {error}")


def test_an_outcome_without_a_reason_names_the_handler():
    @handler("t", name="shop.pay")
    def work(payload: Any, message: Message) -> Outcome:
        return retry_later("")

    put(1)
    deliver_once("default")
    assert OutboxMessage.objects.get().error == "the handler shop.pay gave no reason"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (Reject("no such account"), Status.FAILED, "no such account"),
        (Reject(), Status.FAILED, "Reject"),
        (RetryLater(60, "the bank is closed"), Status.PENDING, "the bank is closed"),
    ],
    ids=["reject", "reject without a text", "retry later"],
)
@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_function_that_a_handler_calls_may_reject_or_put_off_its_message(
    using: str, error: Exception, status: Status, text: str, caplog: pytest.LogCaptureFixture, *, is_async: bool
):
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        with transaction.atomic(using=using):
            raise error

    async def work_async(payload: Any, message: Message) -> None:
        raise error

    handler("t", retry={"DELAY": 5})(work_async if is_async else work)
    put(1, using)
    before = read_clock(using)
    with caplog.at_level(logging.WARNING, logger="django_outbox"):
        deliver_once(using)
    (message,) = OutboxMessage.objects.using(using)
    assert (message.status, message.attempts, message.error) == (status, 1, text)
    assert message.error_class == class_path(error)
    if message.available_at:
        assert message.available_at >= before + timedelta(seconds=59)
    assert effects(using) == []
    # It is no error of the handler.
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("seconds", [-1, float("nan"), "60", None, True])
def test_a_wrong_time_to_put_a_message_off_is_refused(seconds: Any):
    with pytest.raises(ValueError, match=r"^RetryLater: seconds is "):
        RetryLater(seconds)
    with pytest.raises(ValueError, match=r"^set_aside: seconds is "):
        set_aside("the bank is closed", seconds)


@pytest.mark.parametrize("fallback", [False, True], ids=["", "fallback"])
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (retry_later("closed"), "deferred"),
        (retry_later("closed", error_class="bank.closed"), "bank.closed"),
        (retry_later("closed", cause=KeyError()), "KeyError"),
    ],
    ids=["none", "class", "cause"],
)
def test_a_message_that_runs_out_of_attempts_keeps_the_error_class_of_the_last_one(
    outcome: Outcome, expected: str, fallback: bool
):
    @handler("t")
    def work(payload: Any, message: Message) -> Outcome:
        return outcome

    @work.fallback
    def give_up(payload: Any, message: Message, error: Exception) -> None:
        raise LookupError("no fallback")

    if not fallback:
        work.fallback_function = None
    put(1, "default")
    drain_all("default")
    (message,) = OutboxMessage.objects.using("default")
    assert (message.status, message.error_class) == (Status.FAILED, expected)


def test_a_handler_enqueues_in_the_same_transaction_and_in_order(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, payload)
        enqueue("next", payload, key="k", using=using)
        if payload == 1 and not message.attempts:
            raise ValueError("not yet")

    @handler("next")
    def follow(payload: Any, message: Message) -> None:
        leave(using, f"after {payload}")

    put(3, using, key="k")
    drain_all(using)
    assert effects(using) == ["0", "1", "2", "after 0", "after 1", "after 2"]
    assert OutboxMessage.objects.using(using).filter(type="next").count() == 3


def test_a_deferred_message_makes_only_the_later_ones_of_its_key_wait(using: str):
    seen: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        seen.append(payload)
        if payload == 0 and not message.attempts:
            raise ValueError("not yet")

    with settings({"DELAY": 60}):
        put(6, using, keys=2)
        deliver_once(using)
    assert sorted(seen) == [0, 1, 3, 5]
    drain_all(using)
    assert [payload for payload in seen if payload % 2 == 0] == [0, 0, 2, 4]


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "passes"])
def test_a_failed_message_blocks_its_key_only_by_the_setting(using: str, blocks: bool):
    seen: list[int] = []

    @handler("t")
    def work(payload: Any, message: Message) -> Outcome | None:
        seen.append(payload)
        return rejected("no") if payload == 0 else None

    put(2, using, key="k")
    with override_settings(OUTBOX={"PUBLISHERS": {"default": HANDLERS}, "FAILED_BLOCKS_KEY": blocks}):
        drain(using)
    assert seen == ([0] if blocks else [0, 1])


def test_hooks_run_after_the_commit_and_one_that_raises_does_not_matter(using: str):
    told: list[object] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        def hook() -> None:
            told.append((payload, connections[using].in_atomic_block, states(using)))
            if payload == 0:
                raise SystemExit("a bug")

        transaction.on_commit(hook, using=using)
        transaction.on_commit(lambda: told.append("never") if payload == 2 else None, using=using)
        if payload == 2:
            raise ValueError("its hooks are forgotten")

    put(3, using)
    with Relay(using=using) as relay:
        tally = relay.deliver_once()
    assert (tally.processed, tally.retried) == (2, 1)
    done = [Status.PROCESSED, Status.PROCESSED, Status.PENDING]
    assert told == [(0, False, done), (1, False, done)]


def test_a_fallback_counts_as_processed(using: str):
    given: list[Any] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        leave(using, "handler")
        raise ValueError("no")

    @work.fallback
    def refund(payload: Any, message: Message, error: Exception) -> None:
        given.append((payload, message.attempts, repr(error)))
        leave(using, "fallback")

    put(1, using)
    with settings({"MAX_ATTEMPTS": 2}):
        drain_all(using)
    assert given == [(0, 2, "ValueError('no')")]
    assert effects(using) == ["fallback"]
    assert states(using) == [Status.PROCESSED]


def test_a_fallback_that_raises_fails_the_message_with_both_errors(using: str):
    @handler("t")
    def work(payload: Any, message: Message) -> None:
        raise ValueError("the first")

    @work.fallback
    def refund(payload: Any, message: Message, error: Exception) -> None:
        leave(using, "fallback")
        raise KeyError("the second")

    put(1, using)
    with settings({"MAX_ATTEMPTS": 1}), received(messages_failed) as found:
        drain(using)
    (message,) = OutboxMessage.objects.using(using)
    assert message.status is Status.FAILED
    assert message.error == "ValueError: the first; then the fallback failed: KeyError: 'the second'"
    assert message.error_class == "ValueError"
    assert effects(using) == []
    assert [failure.message.id for each in found for failure in each["failures"]] == [message.id]


@pytest.mark.parametrize("unhandled", ["fail", "skip"])
def test_a_type_without_handler_fails_with_the_remedy_or_is_skipped(using: str, unhandled: str):
    put(1, using)
    with settings({"MAX_ATTEMPTS": 2}, unhandled=unhandled):
        drain_all(using)
    (message,) = OutboxMessage.objects.using(using)
    assert message.status is (Status.FAILED if unhandled == "fail" else Status.PROCESSED)
    if unhandled == "fail":
        assert (message.attempts, message.error_class) == (2, "outbox.no_handler")
        assert "@handler('t')" in message.error


def test_what_a_handler_activates_ends_with_it(using: str):
    languages: list[str] = []

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        languages.append(translation.get_language())
        translation.activate("de")

    put(2, using)
    drain(using)
    assert languages == [languages[0]] * 2 != ["de", "de"]
