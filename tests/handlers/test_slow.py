"""A handler that takes long is named in the row of its relay in every view."""

import io
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.monitoring.status import read_status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS
from tests.support.messages import put
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]

IMPATIENT = replace(QUICK, handler_patience=0.05, report_pace=0.005, report_patience=20)
LEASED = {**HANDLERS, "OPTIONS": {"transaction": False}}


@pytest.mark.parametrize(
    ("using", "place"),
    [*((using, "handler") for using in ALIASES), ("postgresql", "fallback")],
)
def test_a_running_relay_names_the_handler_in_every_view(using: str, place: str, admin_client: Client):
    done = threading.Event()

    def hang() -> None:
        assert done.wait(30)

    @handler("t", name="shop.send", retry={"MAX_ATTEMPTS": 1})
    def send(event: Any, message: Message) -> None:
        if place == "handler":
            hang()
        else:
            raise ValueError

    @send.fallback
    def apologize(event: Any, message: Message, error: BaseException) -> None:
        hang()

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
