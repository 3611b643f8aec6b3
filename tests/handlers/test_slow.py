"""A handler that takes long is named in the log, by drains too, and in the row of its relay in every view."""

import io
import logging
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client, override_settings
from django.urls import reverse

from django_outbox.handlers import handler
from django_outbox.handlers.publisher import Call
from django_outbox.messages import Message
from django_outbox.models import OutboxMessage
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Relay
from django_outbox.relay.watchdog import SlowHandlers
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS
from tests.support.messages import Clock, put
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

IMPATIENT = replace(QUICK, watch_interval=0.02, handler_patience=0.05, report_pace=0.005, report_patience=20)
LEASED = {**HANDLERS, "OPTIONS": {"transaction": False}}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if vars(each).get("event") == "handler.slow"]


@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize("entry", [HANDLERS, LEASED], ids=["transactional", "leased"])
@pytest.mark.parametrize("place", ["handler", "fallback", "on_commit"])
def test_a_drain_that_a_handler_holds_up_names_the_handler(
    using: str, entry: dict[str, Any], place: str, caplog: pytest.LogCaptureFixture
):
    def wait_for_the_line() -> None:
        eventually(lambda: lines(caplog), seconds=20)

    @handler("t", name="shop.send", retry={"MAX_ATTEMPTS": 1})
    def send(event: Any, message: Message) -> None:
        if place == "handler":
            wait_for_the_line()
        elif place == "on_commit":
            transaction.on_commit(wait_for_the_line, using=using)
        else:
            raise ValueError

    @send.fallback
    def apologize(event: Any, message: Message, error: BaseException) -> None:
        wait_for_the_line()

    (id,) = put(1, using)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entry}}), Relay(using=using, limits=IMPATIENT) as relay:
        relay.drain(max_seconds=30)
    assert OutboxMessage.objects.using(using).processed().count() == 1
    [line] = lines(caplog)
    assert line.startswith("Publisher 'default': handler shop.send has run for ")
    assert line.endswith(f" on message {id}")


def test_a_running_relay_names_the_handler_in_every_view(using: str, admin_client: Client):
    done = threading.Event()

    @handler("t", name="shop.send")
    def send(event: Any, message: Message) -> None:
        assert done.wait(30)

    def find() -> list[Any]:
        return [each for relay in read_status(using).relays for each in relay.slow_handlers.values()]

    with (
        override_settings(OUTBOX={"PUBLISHERS": {"default": LEASED}}),
        relays_in_threads(using=using, limits=IMPATIENT) as start,
    ):
        start()
        (id,) = put(1, using)
        try:
            eventually(find)
            [call] = find()
            assert (call.handler, call.message_id) == ("shop.send", id)
            output = io.StringIO()
            call_command("outbox_status", "--database", using, stdout=output)
            assert re.search(r"  handler shop.send has run for \d+ s on message", output.getvalue())
            page = admin_client.get(f"{reverse('admin:django_outbox_overview')}?using={using}").content.decode()
            assert re.search(rf"handler shop.<wbr>send has run for \d+ s on message {id}<", page)
        finally:
            done.set()
        eventually(lambda: not find())


def test_a_slow_handler_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    calls = {1: Call("shop.send", 7, 0.0), 2: Call("shop.bill", 8, 42.0)}
    handlers = SlowHandlers({"default": calls}, 10.0, clock)
    clock.now = 42.0
    assert [call.handler for call in handlers.find("default")] == ["shop.send"]
    assert handlers.find("audit") == []
    handlers.log()
    handlers.log()
    assert lines(caplog) == ["Publisher 'default': handler shop.send has run for 42 s on message 7"]
    assert caplog.records[0].levelno == logging.WARNING
    del calls[2]
    clock.now += 60.0
    handlers.log()
    assert len(lines(caplog)) == 2
    # The same thread calls it again.
    calls[1] = Call("shop.send", 7, 1.0)
    handlers.log()
    assert len(lines(caplog)) == 3
