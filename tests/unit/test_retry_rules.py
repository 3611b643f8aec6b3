"""The RETRY settings: the policy for a message, the errors for mistakes, and the relay's retries."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.conf import OutboxSettings, parse
from django_outbox.messages import retry_later
from django_outbox.relay import Relay
from django_outbox.retry import RetryPolicy
from tests.support.publishers import Script

BACKEND = "tests.support.publishers.ScriptedPublisher"


class Gone(Exception):
    pass


def outbox(retry: Any = None, publisher: Any = None) -> dict[str, Any]:
    setting: dict[str, Any] = {"PUBLISHERS": {"default": {"BACKEND": BACKEND}, "hook": {"BACKEND": BACKEND}}}
    if retry is not None:
        setting["RETRY"] = retry
    if publisher is not None:
        setting["PUBLISHERS"]["hook"]["RETRY"] = publisher
    return setting


def settings_of(retry: Any = None, publisher: Any = None) -> OutboxSettings:
    settings, problems = parse(outbox(retry, publisher))
    assert problems == []
    assert settings is not None
    return settings


def policy_of(retry: Any, publisher: Any = None, type: str = "order.created") -> RetryPolicy:
    """The policy of the publisher "hook"."""
    return settings_of(retry, publisher).retry_policy("hook", type)


def test_every_key_is_read():
    retry = {
        "MAX_ATTEMPTS": 3,
        "DELAY": timedelta(seconds=5),
        "FACTOR": 3,
        "MAX_DELAY": 60,
        "JITTER": 0,
        "INCLUDE": [OSError, "tests.unit.test_retry_rules.Gone"],
        "EXCLUDE": ("builtins.TimeoutError",),
    }
    assert policy_of(retry) == RetryPolicy(
        max_attempts=3,
        delay=5,
        factor=3,
        max_delay=60,
        jitter=0,
        include=(OSError, Gone),
        exclude=(TimeoutError,),
    )


def test_an_empty_setting_is_the_default_policy():
    for settings in (settings_of(), settings_of({}, {}), settings_of({"TYPES": {}}, {"TYPES": {"*": {}}})):
        assert settings.retry_policy("default", "order.created") == RetryPolicy()
        assert settings.retry_policy("hook", "order.created") == RetryPolicy()


def test_a_publisher_that_is_not_configured_has_the_policy_for_all():
    assert settings_of({"DELAY": 3}).retry_policy("removed", "t") == RetryPolicy(delay=3)


def test_a_publisher_overrides_key_by_key_and_only_for_itself():
    settings = settings_of({"DELAY": 2, "MAX_ATTEMPTS": 20}, {"DELAY": 30})
    assert settings.retry_policy("hook", "t") == RetryPolicy(delay=30, max_attempts=20)
    assert settings.retry_policy("default", "t") == RetryPolicy(delay=2, max_attempts=20)


def test_the_publishers_type_wins_over_the_publisher_over_the_type_over_the_rest():
    retry = {"DELAY": 1, "FACTOR": 11, "JITTER": 0.1, "MAX_DELAY": 100}
    retry_for_type = {"DELAY": 2, "FACTOR": 12, "JITTER": 0.2}
    publisher = {"DELAY": 3, "FACTOR": 13}
    publisher_for_type = {"DELAY": 4}
    found = policy_of(
        {**retry, "TYPES": {"order.*": retry_for_type}}, {**publisher, "TYPES": {"order.*": publisher_for_type}}
    )
    assert found == RetryPolicy(delay=4, factor=13, jitter=0.2, max_delay=100)


@pytest.mark.parametrize(
    ("type", "delay"),
    [
        ("order.created", 1),
        ("Order.created", 9),
        ("reorder.created", 9),
        ("invoice.a", 2),
        ("invoice.b", 3),
        ("user.1", 4),
    ],
)
def test_the_first_pattern_that_fits_counts_and_case_matters(type: str, delay: float):
    patterns = {"order.*": 1, "invoice.a": 2, "invoice.?": 3, "user.[0-9]": 4, "*": 9, "order.created": 10}
    retry = {"TYPES": {pattern: {"DELAY": delay} for pattern, delay in patterns.items()}}
    assert policy_of(retry, type=type) == RetryPolicy(delay=delay)


def test_an_empty_list_clears_an_earlier_one():
    assert policy_of({"INCLUDE": [OSError], "EXCLUDE": [Gone]}, {"INCLUDE": []}) == RetryPolicy(exclude=(Gone,))


def test_the_policy_of_a_type_is_made_once():
    settings = settings_of({"TYPES": {"order.*": {"DELAY": 3}}})
    assert settings.retry_policy("hook", "order.created") is settings.retry_policy("hook", "order.created")


SECONDS = "It must be a number of seconds greater than 0 and less than a year, or an equivalent timedelta."


@pytest.mark.parametrize(
    ("retry", "message", "remedy"),
    [
        (3, " is 3.", 'It must be a dict such as {"MAX_ATTEMPTS": 5}.'),
        ({"DELAY": float("nan")}, "['DELAY'] is nan.", SECONDS),
        ({"FACTOR": 0.5}, "['FACTOR'] is 0.5.", "It must be a number from 1 to 100."),
        ({"JITTER": True}, "['JITTER'] is True.", "It must be a number from 0 to 1."),
        ({"EXCLUDE": "builtins.OSError"}, "['EXCLUDE'] is 'builtins.OSError'.", "a list of exception classes"),
        ({"INCLUDE": ["nowhere.Gone"]}, "['INCLUDE'][0] is 'nowhere.Gone'.", "No module named 'nowhere'"),
        ({"INCLUDE": [int]}, f"['INCLUDE'][0] is {int!r}.", "It must be an exception class or its dotted path."),
        ({"TYPES": ["order.*"]}, "['TYPES'] is ['order.*'].", "a dict with keys that are patterns of types"),
        ({"TYPES": {1: {}}}, "['TYPES'][1] is not a valid pattern.", "It must be a non-blank string"),
        ({"TYPES": {"a.*": {"TYPES": {}}}}, "['TYPES']['a.*'] has an unknown key 'TYPES'.", "MAX_DELAY."),
    ],
)
def test_the_error_about_an_invalid_value_names_its_path_and_the_valid_values(retry: Any, message: str, remedy: str):
    for everywhere, where, check_id in (
        (True, "OUTBOX['RETRY']", "E003"),
        (False, "OUTBOX['PUBLISHERS']['hook']['RETRY']", "E005"),
    ):
        setting = outbox()
        (setting if everywhere else setting["PUBLISHERS"]["hook"])["RETRY"] = retry
        settings, problems = parse(setting)
        assert settings is None
        assert [(problem.check_id, problem.message) for problem in problems] == [(check_id, where + message)]
        assert remedy in problems[0].hint


def test_every_mistake_is_reported_not_only_the_first():
    retry = {"DELAY": 0, "JITER": 1, "TYPES": {"a": {"FACTOR": 0}, "b": {"INCLUDE": [1, 2]}}}
    _, problems = parse(outbox(retry, {"DELAY": 0}))
    assert [problem.message.removeprefix("OUTBOX") for problem in problems] == [
        "['RETRY']['DELAY'] is 0.",
        "['RETRY'] has an unknown key 'JITER'.",
        "['RETRY']['TYPES']['a']['FACTOR'] is 0.",
        "['RETRY']['TYPES']['b']['INCLUDE'][0] is 1.",
        "['RETRY']['TYPES']['b']['INCLUDE'][1] is 2.",
        "['PUBLISHERS']['hook']['RETRY']['DELAY'] is 0.",
    ]


# Through the relay.


def waits() -> dict[str, int | None]:
    """Whole seconds until each message is due, by type; None for what was given up."""
    found: dict[str, int | None] = {}
    for message in OutboxMessage.objects.all():
        if message.available_at is None:
            found[message.type] = None
        else:
            # It was settled some moments after it was enqueued.
            found[message.type] = (message.available_at - message.occurred_at) // timedelta(seconds=1)
    return found


@pytest.mark.django_db(transaction=True)
def test_the_relay_follows_the_policy_of_the_publisher_and_the_type(scripted: Script):
    scripted.answer = lambda message: retry_later("busy", cause=Gone() if message.type == "user.gone" else None)
    retry = {"DELAY": 1000, "JITTER": 0, "MAX_DELAY": 100_000, "TYPES": {"order.*": {"DELAY": 2000}}}
    own = {"EXCLUDE": [Gone], "TYPES": {"order.paid": {"DELAY": 3600}, "once.*": {"MAX_ATTEMPTS": 1}}}
    with override_settings(OUTBOX=outbox(retry, own)):
        types = ("user.new", "user.gone", "order.new", "order.paid", "once.only")
        with transaction.atomic():
            enqueue_many([OutboxMessage(type=type, payload=1, publisher="hook") for type in types])
        with Relay() as relay:
            relay.drain()
    found = waits()
    assert found == {
        "user.new": pytest.approx(1000, abs=20),
        "user.gone": None,
        "order.new": pytest.approx(2000, abs=20),
        "order.paid": pytest.approx(3600, abs=20),
        "once.only": None,
    }
