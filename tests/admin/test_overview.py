"""The overview: who sees and does what, what it shows, and what its operations change."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.messages import get_messages
from django.db import DatabaseError, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation

from django_outbox.admin import (
    operation_views,
    operations,
    overview,
    overview_groups,
    overview_page,
)
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, Pause, Status
from django_outbox.monitoring import figures
from django_outbox.monitoring.figures import Count, OutageFigure, PausedType, PeriodCount, PublisherStatus, StreamStatus
from django_outbox.monitoring.figures import Status as Figures
from django_outbox.monitoring.verdicts import CODES, judge
from django_outbox.templatetags import outbox_admin
from django_outbox.utils.text import fingerprint
from tests.conftest import ALIASES
from tests.support.admin.overview_figures import NOW, a_bad_night, a_relay
from tests.support.admin.overview_pages import address, confirm, finish, run_to_the_end
from tests.support.admin.tools import client_with, put, statuses, text

pytestmark = pytest.mark.django_db(databases=ALIASES)

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
CAUSE = {"publisher": "default", "error_class": "shop.Timeout", "type": "order.created"}


@pytest.fixture
def bad_night(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "status", a_bad_night)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operation change two messages in a step."""
    monkeypatch.setattr("django_outbox.models.message.BATCH_SIZE", 2)
    monkeypatch.setattr(operation_views.OperationsAdmin, "step_seconds", 0.0)


class TestPage:
    def test_shows_the_figures_of_each_database(self, using: str, admin_client: Client):
        put(Status.FAILED, 2, using=using, error_class="shop.Timeout")
        response = admin_client.get(address(using=using))
        assert response.status_code == 200
        assert f"Outbox · {using}" in text(response)
        (group,) = response.context["groups"]
        assert (group.error_class, group.type, group.count.number) == ("shop.Timeout", "order.created", 2)

    def test_offers_a_switch_between_databases(self, admin_client: Client, settings: Any):
        aliases = admin_client.get(address()).context["databases"]
        assert aliases == ALIASES
        settings.DATABASE_ROUTERS = ["tests.support.routers.NotOnMariaDB"]
        aliases = admin_client.get(address()).context["databases"]
        assert "mariadb" not in aliases
        assert admin_client.get(address(using="mariadb")).status_code == 404
        assert admin_client.get(address(using="nowhere")).status_code == 404

    @pytest.mark.usefixtures("bad_night")
    def test_makes_few_statements_besides_those_for_the_figures(self, admin_client: Client):
        admin_client.get(address())
        with CaptureQueriesContext(connections["default"]) as queries:
            admin_client.get(address())
        # The session, the user, the last operations here and by commands, and the waiting messages without and with a
        # key.
        assert len(queries) == 6

    def test_counts_held_messages_apart_from_delayed_ones(self, using: str, admin_client: Client):
        held = put(Status.PENDING, 5, using=using, age=60)[2:]
        OutboxMessage.objects.using(using).filter(pk__in=held).hold()
        shown = text(admin_client.get(address(using=using, fragment="1")))
        assert "<strong>3</strong> held<" in shown
        assert "delayed" not in shown

    def test_shows_the_reason_of_an_outage_once_and_not_in_the_headline(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        refused = "AMQPConnectionError: [Errno 111] Connection refused"
        night = a_bad_night()
        outage: Any = {"breaker": "open", "outage": OutageFigure(refused, NOW), "relays": 1, "paused": None}
        night = dataclasses.replace(
            night, publishers=tuple(dataclasses.replace(each, **outage) for each in night.publishers[:2])
        )
        night = dataclasses.replace(night, verdicts=judge(night))
        monkeypatch.setattr(overview, "status", lambda using: night)
        page = text(admin_client.get(address(fragment="1")))
        assert page.count(refused) == page.count(f'<p class="outbox-reason">{refused}</p>') == 1
        assert night.verdict.sentence == (
            f"Publisher 'default' has been unavailable for 0 s ({refused}): 100,000+ due."
        )

    @pytest.mark.usefixtures("bad_night")
    def test_returns_the_part_that_is_refreshed(self, admin_client: Client):
        fragment = text(admin_client.get(address(fragment="1")))
        assert "Not delivering for 47 min" in fragment
        assert "<html" not in fragment

    @pytest.mark.usefixtures("bad_night")
    def test_links_to_the_messages_only_for_the_database_of_the_list(self, admin_client: Client):
        links = (
            "?state=failed&amp;publisher=default&amp;error_class=rabbitmq.unroutable&amp;type=invoice.sent",
            reverse("admin:django_outbox_outboxmessage_change", args=[17]),
        )
        page, other = (text(admin_client.get(address(using=using))) for using in ("", "postgresql"))
        for link in links:
            assert f'{link}"' in page
            assert f'{link}"' not in other

    def test_says_why_the_figures_cannot_be_read(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch):
        def fail(using: str) -> None:
            raise DatabaseError("connection refused")

        monkeypatch.setattr(overview, "status", fail)
        page = text(admin_client.get(address()))
        assert "The figures cannot be read" in page
        assert "connection refused" in page


class TestPermissions:
    @pytest.mark.usefixtures("bad_night")
    @pytest.mark.parametrize("permission", ["pause", "requeue", "discard"])
    def test_each_operation_needs_its_permission(self, permission: str):
        client = client_with("view", permission)
        page = text(client.get(address()))
        put(Status.FAILED, age=60, error_class="shop.Timeout")
        for view in ("pause", "requeue", "discard"):
            assert (address(view) in page) is (view == permission)
            allowed = client.get(address(view, **CAUSE)).status_code == 200
            assert allowed is (view == permission)
            if not allowed:
                assert client.post(address(view, **CAUSE)).status_code == 403
        assert (client.post(address("resume", **CAUSE)).status_code == 403) is (permission != "pause")

    def test_without_the_permission_to_view_nothing_is_shown(self):
        client = client_with("requeue")
        assert client.get(address()).status_code == 403
        assert client.post(address("requeue", **CAUSE)).status_code == 403
        assert address() not in text(client.get(reverse("admin:index")))

    def test_the_entry_of_the_index_leads_to_the_overview(self):
        assert f'href="{address()}"' in text(client_with("view").get(reverse("admin:index")))


@pytest.mark.usefixtures("small_steps")
class TestGroups:
    @pytest.mark.parametrize(("operation", "flag"), [("requeue", CHANGE), ("discard", DELETION)])
    def test_an_operation_changes_one_cause_in_batches_and_is_one_log_entry(
        self, using: str, admin_client: Client, operation: str, flag: int
    ):
        chosen = put(Status.FAILED, 7, using=using, age=60, error_class="shop.Timeout")
        others = put(Status.FAILED, 3, using=using, age=90, error_class="shop.timeout")
        url = address(operation, using=using, **CAUSE)
        assert admin_client.get(url).context["button"] == f"{operation.capitalize()} 7 messages"
        assert statuses(using).keys() == {*chosen, *others}
        assert finish(admin_client, url, confirm(admin_client, url, reason="fixed")) == 4
        left = statuses(using)
        assert {left[id] for id in others} == {Status.FAILED}
        assert {left.get(id) for id in chosen} == ({Status.PENDING} if operation == "requeue" else {None})
        entry = LogEntry.objects.get()
        participle = {"requeue": "requeued", "discard": "discarded"}[operation]
        assert entry.change_message == f"7 messages were {participle}. Reason: fixed"
        assert (entry.object_repr, entry.action_flag) == ("shop.Timeout · order.created · default", flag)

    def test_an_interrupted_operation_has_logged_what_it_did(self, admin_client: Client):
        put(Status.FAILED, 5, age=60, error_class="shop.Timeout")
        page = confirm(admin_client, address("requeue", **CAUSE))
        assert (page.context["done"], page.context["expected"]) == (2, 5)
        admin_client.post(address("requeue", **CAUSE), {"state": page.context["state"], "stop": "1"})
        assert OutboxMessage.objects.pending().count() == 2
        assert LogEntry.objects.get().change_message == "2 messages were requeued."
        listed = admin_client.get(address()).context["operations"]
        assert [(entry.by, entry.text) for entry in listed] == [("admin", "2 messages were requeued.")]

    @pytest.mark.parametrize("operation", ["requeue", "discard"])
    def test_messages_of_another_error_are_left_alone(self, using: str, admin_client: Client, operation: str):
        chosen = put(Status.FAILED, 3, using=using, age=60, key="order-1", error="order 7 is gone", **CAUSE)
        others = put(Status.FAILED, 2, using=using, age=60, error="the shop is shut", **CAUSE)
        url = address(operation, using=using, **CAUSE, fingerprint=fingerprint("order 8 is gone"))
        page = admin_client.get(url)
        assert page.context["button"] == f"{operation.capitalize()} 3 messages"
        assert page.context["example"] == "order 7 is gone"
        run_to_the_end(admin_client, url, state=page.context["state"])
        left = statuses(using)
        assert {left[id] for id in others} == {Status.FAILED}
        assert {left.get(id) for id in chosen} == ({Status.PENDING} if operation == "requeue" else {None})

    @pytest.mark.parametrize("operation", ["requeue", "discard"])
    def test_messages_that_fail_later_are_left_alone(self, admin_client: Client, operation: str):
        put(Status.FAILED, 3, age=60, error_class="shop.Timeout")
        url = address(operation, **CAUSE)
        page = admin_client.get(url)
        assert page.context["button"] == f"{operation.capitalize()} 3 messages"
        (late,) = put(Status.FAILED, age=-1, error_class="shop.Timeout")
        run_to_the_end(admin_client, url, state=page.context["state"])
        assert OutboxMessage.objects.failed().get().pk == late

    def test_messages_that_cannot_be_archived_are_not_discarded(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        def fail(*args: Any, **options: Any) -> None:
            raise ArchiveUnavailable("the disk is full")

        monkeypatch.setattr(operations, "discard", fail)
        put(Status.FAILED, 2, age=60, error_class="shop.Timeout")
        response = confirm(admin_client, address("discard", **CAUSE))
        (notice,) = get_messages(response.wsgi_request)
        assert str(notice).startswith("Messages could not be archived")
        assert OutboxMessage.objects.failed().count() == 2
        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize("state", ["", "x", "x:y"])
    def test_a_state_that_was_not_signed_here_is_refused(self, admin_client: Client, state: str):
        put(Status.FAILED, age=60, error_class="shop.Timeout")
        assert admin_client.post(address("discard", **CAUSE), {"state": state}).status_code == 400
        assert admin_client.post(address("resume", **CAUSE), {"state": state}).status_code == 400

    def test_a_state_of_another_operator_group_or_operation_is_refused(self, admin_client: Client):
        put(Status.FAILED, 3, age=60, error_class="shop.Timeout")
        state = {"state": admin_client.get(address("discard", **CAUSE)).context["state"]}
        other = client_with("view", "discard")
        assert other.post(address("discard", **CAUSE), state).status_code == 400
        assert admin_client.post(address("discard", **{**CAUSE, "type": "t"}), state).status_code == 400
        # The address of an operation decides which permission is required.
        assert admin_client.post(address("requeue", **CAUSE), state).status_code == 400
        assert OutboxMessage.objects.failed().count() == 3

    def test_the_confirmation_counts_up_to_a_limit(self, admin_client: Client, monkeypatch: pytest.MonkeyPatch):
        put(Status.FAILED, 3, age=60, error_class="shop.Timeout")
        url = address("requeue", **CAUSE)
        monkeypatch.setattr(overview_groups, "MAX_FAILED", 3)
        assert admin_client.get(url).context["button"] == "Requeue 3 messages"
        monkeypatch.setattr(overview_groups, "MAX_FAILED", 2)
        assert admin_client.get(url).context["button"] == "Requeue 2+ messages"
        for count in (2, 3):
            run_to_the_end(admin_client, url, state=admin_client.get(url).context["state"])
            assert OutboxMessage.objects.pending().count() == count

    def test_messages_that_cannot_be_changed_are_left_alone(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(operations, "discard", lambda *args, **options: 0)
        put(Status.FAILED, 2, age=60, error_class="shop.Timeout")
        url = address("discard", **CAUSE)
        response = confirm(admin_client, url)
        (notice,) = get_messages(response.wsgi_request)
        assert str(notice).startswith("0 messages were discarded. 2 messages were left alone")
        assert not LogEntry.objects.exists()

    def test_a_group_that_is_gone_changes_nothing(self, admin_client: Client):
        assert admin_client.get(address("discard", **CAUSE)).status_code == 302
        assert admin_client.post(address("discard", **CAUSE)).status_code == 302
        assert not LogEntry.objects.exists()


class TestPause:
    def test_a_type_is_paused_and_resumed_step_by_step(
        self, using: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        response = admin_client.post(
            address("pause", using=using, publisher="default"), {"type": "paid", "reason": "later"}
        )
        assert response.status_code == 302
        row = Pause.objects.using(using).get()
        assert (row.publisher, row.type, row.reason, row.paused_by) == ("default", "paid", "later", "admin")

        put(Status.PENDING, 5, using=using, type="paid")
        OutboxMessage.objects.using(using).update(available_at=HELD_BY_PAUSE)
        monkeypatch.setattr(overview.OverviewAdmin, "resume_batch_size", 2)
        monkeypatch.setattr(overview.OverviewAdmin, "step_seconds", 0.0)
        url = address("resume", using=using, publisher="default", type="paid")
        assert admin_client.get(url).status_code == 200
        assert run_to_the_end(admin_client, url) == 3
        assert OutboxMessage.objects.using(using).due().count() == 5
        assert not Pause.objects.using(using).exists()
        entries = LogEntry.objects.order_by("pk").values_list("object_repr", "change_message")
        assert list(entries) == [("default: paid", "Paused. Reason: later"), ("default: paid", "Resumed.")]

    def test_only_publishers_of_the_settings_are_paused(self, admin_client: Client):
        assert admin_client.post(address("pause", publisher="nobody")).status_code == 404
        assert admin_client.post(address("pause")).status_code == 404
        assert admin_client.post(address("pause", publisher="default"), {"type": "x" * 256}).status_code == 400
        assert not Pause.objects.exists()

    def test_what_is_not_paused_or_paused_already_is_not_logged_again(self, admin_client: Client):
        admin_client.post(address("resume", publisher="default"))
        for _ in range(2):
            admin_client.post(address("pause", publisher="default"))
        assert LogEntry.objects.count() == 1


class TestText:
    def test_what_happened_after_the_figures_were_read_happened_now(self):
        later = NOW + datetime.timedelta(seconds=1)
        assert "0 s ago" in outbox_admin.age(later, NOW)
        stream = StreamStatus("default", "web:7", "running", moved_at=later)
        night = dataclasses.replace(a_bad_night(), streams=(stream,))
        shown = overview_page.describe(night, ((), True))["publishers"][0][4]
        assert shown == "stream of web:7 · moved 0 s ago"

    def test_every_verdict_has_a_page_of_the_documentation(self):
        for code in CODES:
            level = figures.Level.OK if code in {"delivering", "idle"} else figures.Level.WARNING
            remedy = overview_page.remedy(figures.Verdict(level, code))
            path, _, anchor = remedy.removeprefix(overview_page.DOCS).partition("#")
            page = (DOCS / path.replace(".html", ".md")).read_text()
            assert not anchor or f"({anchor})=\n" in page, remedy

    def test_the_numbers_of_findings_are_written_as_the_reader_writes_them(self):
        worst = judge(a_bad_night())[0]
        text = "Not delivering for 47 min: {}+ due for 'default', no relay is running (1 last seen 47 min ago)."
        assert worst.sentence == text.format("100,000")
        with translation.override("de"):
            assert worst.sentence == text.format("100.000")

    def test_relays_that_do_not_run_are_folded_except_for_the_last_three(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ):
        gone = [a_relay(host=f"gone-{number}", state="stopped") for number in range(11)]
        night = dataclasses.replace(a_bad_night(), relays=(*gone[:2], a_relay(host="living"), *gone[2:]))
        context = overview_page.describe(night, ((), True))
        assert [relay.host for relay in context["relays"]] == ["living", "gone-0", "gone-1", "gone-2"]
        assert len(context["folded"]) == 8
        monkeypatch.setattr(overview, "status", lambda using: night)
        page = text(admin_client.get(address(fragment="1")))
        assert "8 more relays</summary>" in page
        assert page.index("gone-2") < page.index('<summary data-key="folded-summary') < page.index("gone-3")

    def test_a_single_failure_in_front_of_thousands_of_deliveries_is_visible_on_their_scale(self):
        periods = [PeriodCount(NOW, processed=100_000), PeriodCount(NOW, failed=1), PeriodCount(NOW, failed=50_000)]
        chart = overview_page.draw(periods)
        assert [heights for _, *heights in chart["bars"]] == [[100.0, 0.0], [0.0, overview_page.MIN_BAR], [0.0, 50.0]]
        assert (chart["delivered"], chart["failed"]) == ("100,000", "50,001")

    def test_a_publisher_has_the_state_of_its_verdict_or_else_of_its_relays(self):
        publishers = {
            "late": PublisherStatus("late", due=Count(1), oldest_due=90.0, relays=1),
            "lost": PublisherStatus("lost", breaker="open", outage=OutageFigure("refused", NOW), relays=1),
            "busy": PublisherStatus("busy", processed_per_minute=5, relays=1),
            "calm": PublisherStatus("calm", relays=1),
            "alone": PublisherStatus("alone"),
            "paused": PublisherStatus(
                "paused", paused=PausedType("", "", "ada", NOW), outage=OutageFigure("refused", NOW)
            ),
        }
        night = Figures("default", NOW, publishers=tuple(publishers.values()))
        night = dataclasses.replace(night, verdicts=judge(night))
        shown = overview_page.describe(night, ((), True))["publishers"]
        assert {publisher.alias: (str(state), level) for publisher, state, level, *_ in shown} == {
            "late": ("not delivering", "critical"),
            "lost": ("unavailable", "warning"),
            "busy": ("delivering", "ok"),
            "calm": ("idle", ""),
            "alone": ("no relay", "warning"),
            "paused": ("paused", "warning"),
        }
