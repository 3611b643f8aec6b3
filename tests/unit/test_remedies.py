"""A program that does what the hints of system checks say, step by step, until no check finds anything."""

import ast
import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings

from django_outbox.checks import TAG
from django_outbox.events import event
from django_outbox.handlers import handler
from tests.support.effects import scratch_handlers

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.usefixtures("handlers", "no_events")

MAX_STEPS = 4
"""The largest number of remedies, one after the other, that may be needed."""

CONSOLE = {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}
CELERY = {"BACKEND": "django_outbox.brokers.celery.CeleryPublisher"}
SQS = {
    "BACKEND": "django_outbox.brokers.aws.SQSPublisher",
    "OPTIONS": {"queue_url": "https://sqs.eu-central-1.amazonaws.com/1/a", "max_message_bytes": 4096},
}
RABBITMQ = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer",
    "OPTIONS": {"url": "amqp://127.0.0.1", "queue": "billing"},
}
VALID = {"PUBLISHERS": {"default": CONSOLE, "orders": CONSOLE}}
HANDLED = {"PUBLISHERS": {"default": CONSOLE, "work": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}}}


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [
        (["E001"], {"OUTBOX": "console"}),
        (["E002"], {"OUTBOX": {**VALID, "BATCHSIZE": 3}}),
        (["E002"], {"OUTBOX": CONSOLE}),
        (["E004"], {"OUTBOX": {}}),
        (["E004"], {"OUTBOX": {"PUBLISHERS": [CONSOLE]}}),
        (["E004"], {"OUTBOX": {"PUBLISHERS": {"main": CONSOLE}}}),
        (["E004"], {"OUTBOX": {"PUBLISHERS": {"celery": CELERY}}}),
        (["E003"], {"OUTBOX": {**VALID, "RETRY": {"max_attempt": 3}}}),
        (["E003"], {"OUTBOX": {**VALID, "ARCHIVE": {"storage": "kept", "max_row": 3}}}),
        (["E005"], {"OUTBOX": {"PUBLISHERS": {"default": {**CONSOLE, "batch_size": 3}}}}),
        (["E006"], {"OUTBOX": {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.publishers.ConsolePublisher"}}}}),
        (["E006"], {"OUTBOX": {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.ConsolPublisher"}}}}),
        (["E009"], {"OUTBOX": VALID, "USE_TZ": False}),
        (["E017"], {"OUTBOX": {**VALID, "ARCHIVE": {"storage": "old"}}}),
        (["E018"], {"OUTBOX": {**VALID, "ARCHIVE": {"storage": "kept"}, "RETENTION": datetime.timedelta(0)}}),
        (["W019"], {"OUTBOX": {**VALID, "ARCHIVE": {"storage": "default"}}}),
        (["E023"], {"OUTBOX": {**VALID, "ROUTES": {"order.*": ["order"]}}}),
        (["W026"], {"OUTBOX": {"PUBLISHERS": {"default": CONSOLE, "orders": SQS}, "MAX_PAYLOAD_BYTES": 5000}}),
        (["E036", "E039"], {"OUTBOX": {**VALID, "CONSUMERS": {"a": {**RABBITMQ, "BACKEND": "shop.RabbitMQConsumer"}}}}),
    ],
)
def test_what_the_hint_says_to_write_ends_the_problem(ids: list[str], wrong: dict[str, Any]):
    kept = {**settings.STORAGES, "kept": {"BACKEND": "django.core.files.storage.InMemoryStorage"}}
    assert follow_all({"STORAGES": kept, **wrong}) == ids


def test_a_handler_that_no_publisher_calls_is_called_after_what_the_hints_say():
    handler("order.created")(lambda event, message: None)
    assert follow_all({"OUTBOX": {**VALID, "ROUTES": {"order.*": ["orders"]}}}) == ["W025", "W051"]


def test_an_event_without_a_handler_has_one_after_what_the_hint_says():
    event("order.paid", publisher="work")(Paid)
    problem = only({"OUTBOX": HANDLED}, "W052")
    (decorator,) = re.findall(r"@(handler\([^)]*\))", str(problem.hint))
    eval(decorator, {"handler": handler})(lambda event, message: None)
    assert not problems({"OUTBOX": HANDLED})


def test_a_handler_with_wrong_parameters_can_be_called_after_what_the_hint_says():
    wrong = {"OUTBOX": {**HANDLED, "ROUTES": {"order.*": ["work"]}}}
    with scratch_handlers():
        handler("order.created")(lambda payload: None)
        problem = only(wrong, "E026")
    (definition,) = re.findall(r"def .*\)", str(problem.hint))
    names: dict[str, Any] = {}
    exec(f"{definition.replace('<lambda>', 'work')}: ...", names)
    with scratch_handlers():
        handler("order.created")(names["work"])
        assert not problems(wrong)


@dataclass
class Paid:
    id: int


def problems(changed: Mapping[str, Any]) -> list[CheckMessage]:
    with override_settings(**changed):
        return run_checks(tags=[TAG], databases=[])


def only(changed: Mapping[str, Any], id: str) -> CheckMessage:
    (problem,) = problems(changed)
    assert problem.id == f"django_outbox.{id}"
    return problem


def follow_all(wrong: dict[str, Any]) -> list[str]:
    """Follow the hints until no check finds anything, and return the ids of the checks in turn."""
    ids = []
    while found := problems(wrong):
        ids.append(str(found[0].id).removeprefix("django_outbox."))
        assert len(ids) <= MAX_STEPS, found
        wrong = follow(wrong, found[0])
    return ids


def follow(wrong: dict[str, Any], problem: CheckMessage) -> dict[str, Any]:
    """Return the settings after what a hint says to write, or fail if it says nothing that a program can do."""
    hint = str(problem.hint)
    for pattern, apply in FOLLOWING.items():
        if match := re.search(pattern, hint):
            right = apply(wrong, match, problem.msg)
            assert right != wrong, hint
            return right
    raise AssertionError(f"nothing to write in: {hint}")


def paste_outbox(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    outbox = wrong["OUTBOX"] if isinstance(wrong["OUTBOX"], dict) else {}
    example = ast.literal_eval(match[1])
    kept = {name: value for name, value in outbox.items() if repr(name) not in message}
    old = kept.get("PUBLISHERS", {})
    publishers = {**(old if isinstance(old, dict) else {}), **example["PUBLISHERS"]}
    return {**wrong, "OUTBOX": {**kept, "PUBLISHERS": publishers}}


def rename(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    """Replace the last name that the message quotes from the settings, or the one that the hint names."""
    meant = match["meant"].strip("'")
    quoted = re.findall(r"'([^']+)'", match.groupdict().get("old") or message)
    old = [name for name in quoted if repr(name) in repr(wrong["OUTBOX"])][-1]

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {replaced(key): replaced(each) for key, each in value.items()}
        if isinstance(value, list):
            return [replaced(each) for each in value]
        return meant if value == old else value

    return {**wrong, "OUTBOX": replaced(wrong["OUTBOX"])}


def set_key(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    value = eval(match["value"].replace(",", ""), {"timedelta": datetime.timedelta})
    if match["name"] in wrong:
        return {**wrong, match["name"]: value}
    return {**wrong, "OUTBOX": {**wrong["OUTBOX"], match["name"]: value}}


def add_route(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    routes = {**ast.literal_eval(f"{{{match['entry']}}}"), **wrong["OUTBOX"].get("ROUTES", {})}
    return {**wrong, "OUTBOX": {**wrong["OUTBOX"], "ROUTES": routes}}


def add_publisher(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    publishers = {**wrong["OUTBOX"]["PUBLISHERS"], **ast.literal_eval(f"{{{match['entry']}}}")}
    return {**wrong, "OUTBOX": {**wrong["OUTBOX"], "PUBLISHERS": publishers}}


def add_storage(wrong: dict[str, Any], match: re.Match[str], message: str) -> dict[str, Any]:
    storage = ast.literal_eval(f"{{{match['entry']}}}")
    archive = {**wrong["OUTBOX"]["ARCHIVE"], "storage": next(iter(storage))}
    return {**wrong, "OUTBOX": {**wrong["OUTBOX"], "ARCHIVE": archive}, "STORAGES": {**settings.STORAGES, **storage}}


FOLLOWING: dict[str, Callable[[dict[str, Any], re.Match[str], str], dict[str, Any]]] = {
    r"OUTBOX = (\{.*\})\.": paste_outbox,
    r"Rename (?P<old>'\w+') to (?P<meant>'default')": rename,
    r"Did you mean (?P<meant>[\w.']+)\?": rename,
    r"(?P<entry>\"\S+\": \[.*?\]) to OUTBOX\['ROUTES'\]": add_route,
    r"Add (?P<entry>\"\w+\": \{.*?\})[.,]": add_publisher,
    r"(?P<entry>\"\w+\": \{.*\})\.": add_storage,
    r"Set (?P<name>\w+) (?:=|to at most|to a time, such as) (?P<value>timedelta\(.*?\)|[\d,]+\d|True)": set_key,
}
"""What a program does with each form of a hint; the first one that is found counts."""
