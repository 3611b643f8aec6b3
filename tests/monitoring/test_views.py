"""The pages that machines read: health and metrics."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import Client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from django_outbox import enqueue
from django_outbox.models import OutboxMessage
from django_outbox.monitoring import readings
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import without_table
from tests.support.figures import SECRET, Unreachable
from tests.support.messages import ago

pytest_plugins = ["tests.support.monitoring_fixtures"]
pytestmark = pytest.mark.usefixtures("fresh_figures")

PAGES = ("health/", "metrics/")


def get(page: str, **parameters: Any) -> Any:
    return Client().get(f"/outbox/{page}", parameters)


def assert_status(page: str, status: int, **parameters: Any) -> Any:
    response = get(page, **parameters)
    assert response.status_code == status, response.content
    return response.json()


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_a_connection_that_broke_while_it_was_idle_is_replaced():
    """A server that was restarted is available, although each process still has a connection to the old one."""
    connection = connections["postgresql"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [old] = cursor.fetchone()
    with connections["postgresql"].copy().cursor() as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [old])
        other.db.close()
    assert_status("health/", 200, database="postgresql")


@pytest.mark.django_db(databases=ALIASES)
def test_an_outbox_with_nothing_to_do_is_healthy(using: str):
    found = assert_status("health/", 200, database=using)
    assert found["level"] == "ok"
    assert found["databases"][using]["verdicts"] == [{"level": "ok", "code": "idle", "publisher": "", "consumer": ""}]
    assert found["databases"][using]["publishers"]["default"] == {
        "due": 0,
        "oldest_due_seconds": None,
        "blocked": 0,
        "failed": 0,
        "relays": 0,
        "delivered_in_last_minute": 0,
        "rate_limit": None,
    }


@pytest.mark.django_db(databases=ALIASES)
def test_an_outbox_that_does_not_deliver_is_unhealthy(using: str):
    with transaction.atomic(using=using):
        enqueue("order.created", 1, using=using)
    OutboxMessage.objects.using(using).update(available_at=ago(minutes=47))
    found = assert_status("health/", 503, database=using)
    assert found["level"] == found["databases"][using]["level"] == "critical"
    assert found["databases"][using]["verdicts"][0] == {
        "level": "critical",
        "code": "not_delivering",
        "publisher": "default",
        "consumer": "",
    }
    figures = found["databases"][using]["publishers"]["default"]
    assert figures["due"] == 1
    # Two clocks.
    assert figures["oldest_due_seconds"] > 47 * 60 - 1
    other = next(alias for alias in ALIASES if alias != using)
    found = assert_status("health/", 503, database=[other, using])
    assert (found["level"], found["databases"][other]["level"]) == ("critical", "ok")


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_an_outbox_whose_database_is_unavailable_is_unhealthy(
    using: str, unreachable: Unreachable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # An earlier test may have left an outage behind.
    monkeypatch.setattr(readings, "_problems", {})
    with unreachable(using):
        for _ in range(2):
            found = assert_status("health/", 503, database=using)
    assert found["databases"][using] == {
        "level": "critical",
        "verdicts": [{"level": "critical", "code": "database_unavailable", "publisher": "", "consumer": ""}],
        "publishers": {},
        "consumers": {},
    }
    logged = [record for record in caplog.records if record.name == "django_outbox"]
    assert len(logged) == 1, "an outage is logged once, however often it is seen"
    assert_status("health/", 200, database=using)


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_an_outbox_without_its_tables_is_unreadable(using: str):
    with without_table(using, OutboxMessage):
        found = assert_status("health/", 503, database=using)
    assert [verdict["code"] for verdict in found["databases"][using]["verdicts"]] == ["unreadable"]


@pytest.mark.parametrize("page", PAGES)
def test_a_database_without_an_outbox_is_not_found(page: str, settings: Any):
    settings.DATABASE_ROUTERS = ["tests.support.routers.NotOnMariaDB"]
    for database in ("mariadb", "missing", ["default", "missing"]):
        assert_status(page, 404, database=database)


@pytest.mark.usefixtures("troubled", "db")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_no_key_operator_host_or_error(page: str):
    content = get(page).content.decode()
    assert SECRET not in content
    assert "not_delivering" in content


@pytest.mark.usefixtures("troubled", "db")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_only_read_never_cached_and_needs_no_login(page: str, settings: Any):
    """A redirect to a login would look like success."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    response = get(page)
    assert response.status_code in (200, 503)
    assert "no-store" in response.headers["Cache-Control"]
    assert Client().post(f"/outbox/{page}").status_code == 405


@pytest.mark.usefixtures("troubled")
@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            parse_openmetrics,
        ),
    ],
    ids=["text", "openmetrics"],
)
def test_the_metrics_are_in_the_format_that_prometheus_asks_for(
    accept: str, content_type: str, parse: Callable[[str], Any]
):
    response = Client().get("/outbox/metrics/", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith(content_type)
    families = {family.name: family for family in parse(response.content.decode())}
    assert [sample.value for sample in families["django_outbox_up"].samples] == [1]


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_the_scrape_succeeds_while_a_database_is_unavailable(using: str, unreachable: Unreachable):
    with unreachable(using):
        response = get("metrics/", database=["default", using])
    assert response.status_code == 200
    samples = metrics_of(response)
    assert (samples["django_outbox_up", "default"], samples["django_outbox_up", using]) == (1, 0)
    assert ("django_outbox_due_messages", "default", "default") in samples
    assert ("django_outbox_due_messages", using, "default") not in samples


def metrics_of(response: Any) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse_text(response.content.decode())
        for sample in family.samples
    }


def test_without_the_prometheus_client_the_metrics_name_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "django_outbox.monitoring.prometheus", raising=False)
    monkeypatch.setattr("django_outbox.monitoring.prometheus", None, raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    response = get("metrics/")
    assert response.status_code == 501
    assert 'pip install "django-transactional-outbox[prometheus]"' in response.content.decode()
