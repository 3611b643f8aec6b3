"""The events of the log: the reference lists those of the code, and machines can read them."""

import ast
import functools
import json
import logging
import re
from collections import defaultdict
from typing import Any

import pytest

from django_outbox.service.outages import Outage, Outages
from django_outbox.utils.logs import logger
from tests.docs.blocks import find
from tests.support.project_files import ROOT

ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| [A-Z, ]+ \| ([^|]*) \|", re.MULTILINE)


@functools.cache
def find_calls() -> list[ast.Call]:
    """Return all calls in the code. Each process of a run collects this module, and one of them runs its tests."""
    return [
        node
        for path in sorted((ROOT / "django_outbox").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def events_of_the_code() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for call in find_calls():
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        event = keywords.pop("event", None)
        if isinstance(event, ast.Constant) and isinstance(event.value, str):
            names = {"owner" if name == "subject" else name for name in keywords}
            found[event.value] |= names - {"exc_info", "stacklevel"}
    return found


def test_the_reference_lists_each_event_with_its_fields():
    page = (ROOT / "docs" / "reference" / "log.md").read_text()
    listed = {name: set(re.findall(r"`(\w+)`", fields)) for name, fields in ROW.findall(page)}
    assert listed == events_of_the_code()


def test_each_line_of_the_log_has_an_event():
    calls = [
        call
        for call in find_calls()
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "logger"
        and call.func.attr in {"debug", "info", "warning", "error", "exception", "critical", "log"}
    ]
    assert len(calls) > 50
    for call in calls:
        # Two functions pass on the fields that they are given.
        assert {keyword.arg for keyword in call.keywords} & {"event", None}, ast.unparse(call)


def test_an_outage_can_be_read_from_the_fields(caplog: pytest.LogCaptureFixture):
    Outages().note(Outage("Publisher 'default'", "connection refused\nfor the second time"))
    [record] = caplog.records
    fields: dict[str, Any] = vars(record)
    assert (fields["event"], fields["publisher"]) == ("outage.began", "default")
    assert "\n" not in fields["reason"]


def test_the_formatter_of_the_docs_writes_the_fields_as_json():
    [code] = find("monitoring", caption="project/log.py")
    names: dict[str, Any] = {}
    exec(code, names)
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(names["JSONFormatter"]().format(record))  # type: ignore[method-assign]
    logger.logger.addHandler(handler)
    try:
        Outages().note(Outage("Database 'default'", "gone"))
    finally:
        logger.logger.removeHandler(handler)
    line = json.loads(written[0])
    assert {
        "event": "outage.began",
        "database": "default",
        "reason": "gone",
        "level": "WARNING",
    }.items() <= line.items()
    assert line["message"].startswith("Database 'default' is unavailable")
    assert not line.keys() & {"args", "msg", "levelno", "thread"}
