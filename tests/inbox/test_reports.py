"""Inboxes report that they are alive and what they receive, and every face of the monitoring shows it."""

import datetime
import json
import re
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_outbox.db.functions import DatabaseNow
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.management.commands.run_inbox import InboxFigures
from django_outbox.inbox.reading import InboxLimits
from django_outbox.models import Heartbeat
from django_outbox.monitoring import Level
from django_outbox.monitoring.figures import ConsumerStatus
from django_outbox.monitoring.status import read_status
from django_outbox.retry import Backoff
from django_outbox.utils.process import name_process
from tests.conftest import ALIASES, LOCKING
from tests.inbox.conftest import QUICK, Writing, outbox_of, read_all, running
from tests.support.ports import free_port
from tests.support.rabbitmq.tools import broker_url
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

NAME = f"{name_process()}:inbox"
OFTEN: InboxLimits = replace(QUICK, report_pace=0.01, report_patience=20)


@pytest.fixture
def make_reporting(source: Any) -> Any:
    """Make an inbox that reports often, with these options of its consumer."""

    def make(using: str, *, idle_exit: float | None = None, limits: InboxLimits = OFTEN, **options: Any) -> Inbox:
        with override_settings(OUTBOX=outbox_of(source, **options)):
            return Inbox(using=using, limits=limits, idle_exit=idle_exit)

    return make


def read(using: str) -> ConsumerStatus:
    [consumer] = read_status(using).consumers
    return consumer


def show(using: str, *flags: str) -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("outbox_status", *flags, database=using, stdout=out, no_color=True)
    return out.getvalue()


@pytest.mark.parametrize("using", LOCKING)
def test_a_running_inbox_reports_its_consumers_and_counts(using: str, source: Any, make_reporting: Any):
    source.send(1, 2)
    source.send(raw=b"not JSON")
    with running(make_reporting(using)):
        eventually(lambda: [each.received for each in read_status(using).consumers] == [3], "the report has 3 messages")
        found = read(using)
        assert (found.alias, found.state, found.inboxes, found.stored, found.invalid) == ("billing", "reading", 1, 3, 1)
        assert source.name in found.source
        status = read_status(using)
        assert status.relays == ()
        assert not [verdict for verdict in status.verdicts if verdict.consumer]
    last = Heartbeat.objects.using(using).get()
    assert last.relay == NAME
    assert last.stopped_at is not None


def test_an_inbox_that_ends_when_idle_reports_when_it_ends(source: Any, make_reporting: Any):
    source.send(1, 2, 3)
    make_reporting("default", idle_exit=3).run()
    assert (read("default").state, read("default").stored, Heartbeat.objects.get().mode) == ("reading", 3, "drain")


def test_an_unavailable_broker_is_reported_with_its_reason(source: Any, make_reporting: Any):
    with running(make_reporting("default", url=broker_url(port=free_port()))):
        eventually(lambda: [each.state for each in read_status("default").consumers] == ["unavailable"])
        [verdict] = [each for each in read_status("default").verdicts if each.consumer]
        assert (verdict.code, verdict.consumer, verdict.level) == ("not_receiving", "billing", Level.WARNING)
        assert "Consumer 'billing' has been unavailable for" in verdict.sentence


def test_a_reader_that_crashes_is_reported_with_its_reason(source: Any, make_reporting: Any, writing: Writing):
    writing.error = RuntimeError("no idea")
    source.send(1)
    # A reader that runs for twice the longest wait has recovered, even if it only waits for a busy machine.
    patient = replace(OFTEN, restart_wait=Backoff(delay=0.01, max_delay=2.0))
    with running(make_reporting("default", limits=patient)) as inbox:
        eventually(
            lambda: [True for each in read_status("default").consumers if each.outage and each.outage.crashes >= 3]
        )
        status = read_status("default")
        (consumer,) = status.consumers
        assert (consumer.state, consumer.outage and consumer.outage.reason) == ("crashed", "RuntimeError: no idea")
        assert (status.verdict.code, status.verdict.consumer, status.level) == ("crashed", "billing", Level.CRITICAL)
        assert "The reader of consumer 'billing' crashed" in status.verdict.sentence
        (crashed,) = inbox.outages
        assert "its reader crashed" in f"{crashed.name} {crashed.state}"
        writing.error = None
        # It has recovered once it has run for a while.
        eventually(lambda: read_status("default").consumers[0].state == "reading")
        assert not inbox.outages


def test_a_consumer_that_pauses_is_a_warning(source: Any, make_reporting: Any):
    source.send(*range(5))
    with running(make_reporting("default", max_backlog=1)):
        eventually(lambda: [each.state for each in read_status("default").consumers] == ["paused"])
        [verdict] = [each for each in read_status("default").verdicts if each.consumer]
        assert (verdict.code, verdict.level) == ("backlog", Level.WARNING)


def report(using: str = "default", *, minutes: float, **values: Any) -> None:
    """Write the report of an inbox that was last seen some time ago."""
    state = {"source": "queue 'orders'", "state": "reading", "reason": "", "since": None, "received": 9, "stored": 9}
    seen = DatabaseNow() - datetime.timedelta(minutes=minutes)
    given = {"relay": f"a:{minutes}:inbox", "host": "a", "pid": 1, "mode": "run", "workers": 1, "seen_at": seen}
    Heartbeat.objects.using(using).create(**{**given, "consumers": {"orders": state}, **values})


@pytest.mark.parametrize("using", ALIASES)
def test_a_consumer_whose_inbox_died_is_critical_and_has_no_rate(using: str):
    report(using, minutes=5)
    status = read_status(using)
    assert (status.level, status.verdict.code) == (Level.CRITICAL, "not_read")
    assert status.verdict.sentence.startswith("Consumer 'orders' is not read: its inbox was last seen 5 min")
    assert (read(using).state, read(using).inboxes, read(using).received) == ("not_read", 0, 0)


def test_another_inbox_that_reads_the_consumer_is_enough():
    report(minutes=5)
    report(minutes=0)
    assert (read("default").inboxes, read("default").received) == (1, 9)
    assert read_status("default").level == Level.OK


def test_a_consumer_whose_inbox_was_stopped_is_a_warning_while_it_is_in_the_settings(settings: Any):
    report(minutes=5, stopped_at=DatabaseNow() - datetime.timedelta(minutes=5))
    assert read_status("default").consumers == ()
    settings.OUTBOX = {**settings.OUTBOX, "CONSUMERS": {"orders": {"BACKEND": "x.Consumer"}}}
    status = read_status("default")
    assert (status.level, status.verdict.code) == (Level.WARNING, "not_read")
    assert status.verdict.sentence.startswith("Consumer 'orders' is not read: run_inbox stopped 5 min")


def test_the_status_command_shows_consumers_as_text_and_as_json():
    report(minutes=5)
    assert "CRITICAL: Consumer 'orders' is not read" in show("default")
    assert "queue 'orders'  not read" in show("default")
    [consumer] = json.loads(show("default", "--json"))["consumers"]
    assert (consumer["alias"], consumer["state"], consumer["inboxes"]) == ("orders", "not_read", 0)


def test_the_health_page_is_critical_if_an_inbox_died(client: Any):
    report(minutes=5)
    response = client.get("/outbox/health/?database=default")
    assert response.status_code == 503
    found = response.json()["databases"]["default"]
    assert found["verdicts"][0] == {"level": "critical", "code": "not_read", "publisher": "", "consumer": "orders"}
    assert found["consumers"] == {"orders": {"state": "not_read", "inboxes": 0, "received": 0}}


def test_the_overview_shows_consumers(admin_client: Any):
    report(minutes=5)
    page = admin_client.get("/admin/django_outbox/overview/").content.decode()
    assert "Consumers of the inbox" in page
    assert "queue &#x27;orders&#x27;" in page
    assert "is not read: its inbox was last seen" in page


def test_the_overview_has_no_section_of_consumers_without_an_inbox(admin_client: Any):
    assert "Consumers of the inbox" not in admin_client.get("/admin/django_outbox/overview/").content.decode()


def test_the_live_line_shows_what_an_inbox_does(source: Any, make_reporting: Any):
    source.send(1, 2, 3)
    inbox = make_reporting("default")
    reader = InboxFigures(inbox)
    read_all(inbox, source)
    rate, *counts = reader.read().texts
    assert re.fullmatch(r"[1-9][\d,]* msg/s", rate)
    assert counts == ["received 3", "stored 3", "known 0", "invalid 0", "dropped 0", "rejected 0"]
    assert reader.read().served == "database default · consumer billing"
    assert reader.read().texts[0] == "0 msg/s"


def test_the_live_line_shows_which_consumers_are_paused(make_reporting: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Inbox, "paused", ["billing"])
    assert InboxFigures(make_reporting("default")).read().texts[0] == "paused by the backlog: billing"


def test_an_inbox_that_has_missed_two_reports_is_a_warning_at_first():
    """A database that is slow for a moment delays reports, too."""
    report(minutes=0.5)
    [verdict] = [each for each in read_status("default").verdicts if each.code == "not_read"]
    assert verdict.level == Level.WARNING
