"""The OUTBOX setting: defaults, lazy access, and errors."""

import datetime
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_outbox.conf import get_settings, parse

MEMORY = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}


def test_a_changed_setting_takes_effect_at_once():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "BATCH_SIZE": 7}):
        assert get_settings().batch_size == 7
    assert get_settings().batch_size == 2000


def test_the_first_use_of_an_invalid_setting_raises_an_error_that_names_it():
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "BATCH_SIZE": 0}), pytest.raises(ImproperlyConfigured) as info:
        get_settings()
    assert "OUTBOX['BATCH_SIZE'] is 0. It must be a whole number of at least 1." in str(info.value)


def test_a_publisher_may_have_its_own_claim_timeout():
    entries = {**MEMORY, "reports": {**MEMORY["default"], "CLAIM_TIMEOUT": datetime.timedelta(hours=1)}}
    settings, problems = parse({"PUBLISHERS": entries, "CLAIM_TIMEOUT": 30})
    assert problems == []
    assert settings is not None
    assert settings.claim_timeouts == {"reports": 3600.0, "default": 30.0}


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("BATCH_SIZE", True, "a whole number of at least 1"),
        ("POLL_INTERVAL", 0, "a number of seconds greater than 0 and less than a year, or an equivalent timedelta"),
        ("RETENTION", datetime.timedelta(-1), "a timedelta of 0 or more, or None to keep messages forever"),
        ("REQUIRE_TRANSACTION", "no", "True or False"),
        ("CLAIM_TIMEOUT", -1, "a number of seconds greater than 0 and less than a year, or an equivalent timedelta"),
        ("CLAIM_TIMEOUT", 0.5, "a number of seconds of at least 1, or an equivalent timedelta"),
        ("DEAD_LETTER_PUBLISHER", 3, "the alias of a publisher, or None to send no copies of failed messages"),
        ("DEAD_LETTER_PUBLISHER", "graveyard", "an alias in PUBLISHERS (default), or None"),
    ],
)
def test_the_error_about_an_invalid_value_names_the_valid_ones(key: str, value: Any, remedy: str):
    settings, problems = parse({"PUBLISHERS": MEMORY, key: value})
    assert settings is None
    assert [problem.check_id for problem in problems] == ["E003"]
    assert key in problems[0].message
    assert remedy in problems[0].hint


@pytest.mark.parametrize("backend", [".", "...", ".publishers.ShopPublisher"])
def test_the_path_of_a_backend_is_not_relative(backend: str):
    _, problems = parse({"PUBLISHERS": {"default": {"BACKEND": backend}}, "CONSUMERS": {"shop": {"BACKEND": backend}}})
    assert [problem.message for problem in problems] == [
        "OUTBOX['CONSUMERS']['shop'] is not a valid consumer entry.",
        "OUTBOX['PUBLISHERS']['default'] is not a valid publisher entry.",
    ]


@pytest.mark.parametrize("alias", ["billing ", " billing", "bill\ning", "", "x" * 64, 7])
def test_an_alias_is_a_name(alias: object):
    entry = {alias: {"BACKEND": "shop.Backend"}}
    _, problems = parse({"PUBLISHERS": {**MEMORY, **entry}, "CONSUMERS": entry})
    assert [problem.message for problem in problems] == [
        f"OUTBOX['CONSUMERS'][{alias!r}] is not a valid consumer entry.",
        f"OUTBOX['PUBLISHERS'][{alias!r}] is not a valid publisher entry.",
    ]
    assert all("without blanks around it" in problem.hint for problem in problems)


@pytest.mark.parametrize("key", ["RETRY", "RETENTION", "x" * 100_000])
def test_an_error_shows_the_beginning_of_a_long_value(key: str):
    _, problems = parse({"PUBLISHERS": MEMORY, key: "x" * 100_000})
    assert [len(str(problem)) < 2500 for problem in problems] == [True]
    assert key[:100] in problems[0].message


def test_a_password_in_the_options_is_not_in_the_text_of_the_settings():
    """Frames in a report of an error have that text."""
    options = {"url": "redis://shop:s3cret@localhost:6379/0"}
    publishers = {"default": {"BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher", "OPTIONS": options}}
    consumers = {"billing": {"BACKEND": "django_outbox.brokers.redis.RedisStreamsConsumer", "OPTIONS": options}}
    settings, _ = parse({"PUBLISHERS": publishers, "CONSUMERS": consumers})
    assert settings is not None
    assert settings.publishers["default"].options == options
    assert "s3cret" not in repr(settings)
