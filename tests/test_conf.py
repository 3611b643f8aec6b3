"""The OUTBOX setting: defaults, laziness, and what it says of mistakes."""

import datetime
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_outbox.conf import get_settings, parse
from django_outbox.retry import RetryPolicy

MEMORY = {"default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}}


def test_defaults_are_those_of_the_reference():
    settings, problems = parse({"PUBLISHERS": MEMORY})
    assert problems == []
    assert settings is not None
    assert settings.batch_size == 2000
    assert settings.poll_interval == 1.0
    assert settings.retention == datetime.timedelta(days=7)
    assert settings.max_payload_bytes == 1024 * 1024
    assert settings.require_transaction is True
    assert settings.retry_policy("default", "order.created") == RetryPolicy()
    assert settings.failed_holds_key is False
    assert settings.serialize_keys is False
    assert settings.dead_letter_publisher is None


def test_a_changed_setting_is_seen_at_once():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "BATCH_SIZE": 7}):
        assert get_settings().batch_size == 7
    assert get_settings().batch_size == 2000


def test_first_use_of_a_wrong_setting_raises_what_is_wrong():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "BATCH_SIZE": 0}), pytest.raises(ImproperlyConfigured) as info:
        get_settings()
    assert "OUTBOX['BATCH_SIZE'] is 0. It must be a whole number of at least 1." in str(info.value)


def test_every_mistake_is_told_not_only_the_first():
    _, problems = parse({"PUBLISHERS": MEMORY, "BATCH_SIZE": -1, "BATCHSIZE": 5, "RETENTION": 7})
    assert sorted(problem.check_id for problem in problems) == ["E002", "E003", "E003"]


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("BATCH_SIZE", True, "a whole number of at least 1"),
        ("BATCH_SIZE", 1.5, "a whole number of at least 1"),
        ("BATCH_BYTES", 0, "a whole number of at least 1"),
        ("POLL_INTERVAL", 0, "a number of seconds above 0"),
        ("POLL_INTERVAL", float("nan"), "a number of seconds above 0"),
        ("POLL_INTERVAL", "1", "a number of seconds above 0"),
        ("RETENTION", 7, "a timedelta of 0 or more, or None to keep messages for ever"),
        ("RETENTION", datetime.timedelta(-1), "a timedelta of 0 or more, or None to keep messages for ever"),
        ("REQUIRE_TRANSACTION", "no", "True or False"),
        ("MAX_PAYLOAD_BYTES", None, "a whole number of at least 1"),
        ("LEASE", -1, "a number of seconds above 0"),
        ("LEASE", 0.5, "a number of seconds of at least 1"),
        ("FAILED_HOLDS_KEY", 1, "True or False"),
        ("SERIALIZE_KEYS", None, "True or False"),
        ("DEAD_LETTER_PUBLISHER", 3, "the alias of a publisher, or None for no copies of failed messages"),
        ("DEAD_LETTER_PUBLISHER", "graveyard", "one of default, or None"),
    ],
)
def test_a_wrong_value_is_told_with_what_it_must_be(key: str, value: Any, remedy: str):
    settings, problems = parse({"PUBLISHERS": MEMORY, key: value})
    assert settings is None
    assert [problem.check_id for problem in problems] == ["E003"]
    assert key in problems[0].message
    assert remedy in problems[0].hint


def test_times_may_be_given_as_timedelta():
    settings, _ = parse({"PUBLISHERS": MEMORY, "POLL_INTERVAL": datetime.timedelta(milliseconds=250)})
    assert settings is not None
    assert settings.poll_interval == 0.25


def test_a_wrong_retry_of_a_publisher_does_not_hide_the_publisher():
    publishers = {**MEMORY, "dead": {**MEMORY["default"], "RETRY": {"DELAY": 0}}}
    _, problems = parse({"PUBLISHERS": publishers, "DEAD_LETTER_PUBLISHER": "dead"})
    assert [problem.message for problem in problems] == ["OUTBOX['PUBLISHERS']['dead']['RETRY']['DELAY'] is 0."]
