"""The system checks of the consumers, each by its ID."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_outbox.checks import TAG
from django_outbox.inbox.inbox import Inbox
from tests.support.effects import scratch_handlers

MEMORY = "django_outbox.brokers.memory.MemoryPublisher"
RABBITMQ = "django_outbox.brokers.rabbitmq.RabbitMQConsumer"
OPTIONS = {"url": "amqp://guest:secret@host", "queue": "billing"}


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    """Another test may have imported some: a check reports handlers that no publisher calls."""
    with scratch_handlers():
        yield


def outbox(backend: Any = RABBITMQ, **options: Any) -> dict[str, Any]:
    entry = {"BACKEND": backend, "OPTIONS": {**OPTIONS, **options}}
    return {
        "PUBLISHERS": {"default": {"BACKEND": MEMORY}, "handlers": {"BACKEND": MEMORY}},
        "CONSUMERS": {"billing": entry},
    }


def found(value: dict[str, Any]) -> dict[str, CheckMessage]:
    with override_settings(OUTBOX=value):
        return {str(message.id): message for message in run_checks(tags=[TAG], databases=[])}


def only(value: dict[str, Any], id: str) -> CheckMessage:
    problems = found(value)
    assert list(problems) == [f"django_outbox.{id}"]
    problem = problems[f"django_outbox.{id}"]
    assert problem.hint
    assert "secret" not in f"{problem.msg} {problem.hint}"
    return problem


def test_valid_consumers_give_no_message():
    assert found(outbox()) == {}


@pytest.mark.parametrize(
    "consumers",
    [3, {"billing": 3}, {"billing": {}}, {7: {"BACKEND": RABBITMQ}}, {"x" * 51: {"BACKEND": RABBITMQ}}],
    ids=str,
)
def test_e035_the_entry_is_invalid(consumers):
    assert "OUTBOX['CONSUMERS']" in only({**outbox(), "CONSUMERS": consumers}, "E035").msg


def test_e035_there_is_no_such_consumer():
    with override_settings(OUTBOX=outbox()), pytest.raises(ImproperlyConfigured, match="no consumer 'x'"):
        Inbox(consumers=["x"])
    without = {**outbox(), "CONSUMERS": {}}
    with override_settings(OUTBOX=without), pytest.raises(ImproperlyConfigured, match="OUTBOX has no CONSUMERS"):
        Inbox()


def test_e036_the_backend_cannot_be_imported():
    assert "'shop.Nothing' cannot be imported" in only(outbox("shop.Nothing"), "E036").msg


def test_e037_the_backend_is_not_a_consumer():
    assert "is not a consumer" in only(outbox(MEMORY), "E037").msg


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "queue is missing; set it to a string like 'billing'"),
        ({"type_header": 7}, "type_header is 7; it must be the name of a header"),
        ({"unknown_types": "ignore"}, "unknown_types is 'ignore'; it must be one of 'store', 'drop'"),
        (
            {"id_source": "header:"},
            "id_source is 'header:'; it must be 'message_id', 'position', 'body' or 'header:NAME'",
        ),
        ({"remember": 1}, "remember is 1; it must be True or False"),
        ({"max_backlog": 0}, "max_backlog is 0; it must be a whole number from 1"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_bytes": 2**31}, "batch_bytes is 2147483648"),
        ({"publisher": None}, "publisher is None"),
        ({"prefetch": 3}, "unexpected keyword argument 'prefetch'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_e038_the_options_are_invalid(options, text):
    problem = only(outbox(**options), "E038")
    assert problem.msg.startswith("OUTBOX['CONSUMERS']['billing']: OPTIONS are invalid: ")
    assert text in problem.msg


def test_e039_the_publisher_is_not_configured():
    problem = only(outbox(publisher="nowhere"), "E039")
    assert "the publisher 'nowhere', which is not in OUTBOX['PUBLISHERS']" in problem.msg
    assert "default, handlers" in str(problem.hint)


def test_w035_the_app_is_not_installed():
    apps = [app for app in settings.INSTALLED_APPS if app != "django_outbox.inbox"]
    with override_settings(INSTALLED_APPS=apps):
        assert "django_outbox.inbox" in str(only(outbox(), "W035").hint)
        assert found({**outbox(), "CONSUMERS": {}}) == {}


@pytest.mark.parametrize("retention", [datetime.timedelta(0), datetime.timedelta(hours=23)], ids=str)
def test_w036_a_message_may_come_again_after_its_row_was_deleted(retention):
    assert "remember to True" in str(only({**outbox(), "RETENTION": retention}, "W036").hint)
    assert found({**outbox(remember=True), "RETENTION": retention}) == {}
    assert found({**outbox(), "RETENTION": None}) == {}
