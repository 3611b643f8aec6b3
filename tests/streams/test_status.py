"""Every view shows who moves a stream, and how far it is behind."""

import io
import json
from contextlib import suppress

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox.models import Heartbeat, StreamPosition
from django_outbox.monitoring.figures import Count
from django_outbox.monitoring.prometheus import OutboxCollector
from django_outbox.monitoring.status import read_status
from django_outbox.utils.process import name_process
from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED, deliver, new_source, report_relays
from tests.support.databases import statements
from tests.support.messages import put
from tests.support.publishers import SCRIPTED

pytest_plugins = ["tests.support.monitoring_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED


def test_the_relay_that_moved_the_position_owns_it_while_it_runs():
    report_relays(PG, name_process())
    (stream,) = read_status(PG).streams
    assert (stream.relay, stream.owned) == ("", False)
    put(3, PG)
    deliver(new_source(PG))
    put(2, PG)
    (stream,) = read_status(PG).streams
    assert (stream.relay, stream.owned) == (name_process(), True)
    assert stream.moved_at is not None
    assert stream.waiting == Count(2)
    assert stream.oldest is not None
    Heartbeat.objects.using(PG).filter(relay=name_process()).delete()
    (stream,) = read_status(PG).streams
    assert (stream.relay, stream.owned) == (name_process(), False)


def test_a_stream_costs_the_status_four_statements_more():
    put(3, PG)
    deliver(new_source(PG))
    put(2, PG)
    with CaptureQueriesContext(connections[PG]) as with_stream:
        read_status(PG)
    StreamPosition.objects.using(PG).all().delete()
    with (
        override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED}}),
        CaptureQueriesContext(connections[PG]) as without,
    ):
        read_status(PG)
    assert len(statements(with_stream)) - len(statements(without)) == 4


@pytest.mark.usefixtures("fresh_figures")
def test_every_view_shows_the_owner_and_the_lag():
    report_relays(PG, name_process())
    put(3, PG)
    deliver(new_source(PG))
    put(2, PG)
    out = io.StringIO()
    with suppress(SystemExit):
        call_command("outbox_status", "--database", PG, "--json", stdout=out)
    shown = json.loads(out.getvalue())
    assert shown["streams"][0]["relay"] == name_process()
    out = io.StringIO()
    with suppress(SystemExit):
        call_command("outbox_status", "--database", PG, "--no-color", stdout=out)
    line = next(line for line in out.getvalue().splitlines() if f"stream of {name_process()} · moved" in line)
    assert line.split()[:2] == ["default", "2"]

    gauges = {
        (family.name.removeprefix("django_outbox_"), sample.value)
        for family in OutboxCollector([PG]).collect()
        for sample in family.samples
    }
    assert ("due_messages", 2) in gauges

    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    html = client.get("/admin/django_outbox/overview/", {"using": PG, "fragment": "1"}).content.decode()
    assert f"stream of {name_process()}" in html
