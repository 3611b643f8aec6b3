"""The check for `django-health-check`, in that package's own view."""

from typing import Any

import pytest
from django.test import Client
from django.urls import path
from health_check.views import HealthCheckView

from django_outbox.monitoring import readings
from tests.conftest import ALIASES, LOCKING
from tests.support.figures import SECRET, VERDICTS, Unreachable, troubled_status

pytest_plugins = ["tests.support.monitoring_fixtures"]
pytestmark = [pytest.mark.usefixtures("fresh_figures"), pytest.mark.urls(__name__)]

CHECK = "django_outbox.contrib.health_check.Outbox"

urlpatterns = [
    path("plain/", HealthCheckView.as_view(checks=[CHECK])),
    path("strict/", HealthCheckView.as_view(checks=[(CHECK, {"warnings": True})])),
    *(path(f"{using}/", HealthCheckView.as_view(checks=[(CHECK, {"database": using})])) for using in ALIASES),
]


def report(page: str) -> tuple[int, Any]:
    response = Client().get(f"/{page}/?format=json")
    return response.status_code, response.json()


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_an_outbox_with_nothing_to_do_passes(using: str):
    assert report(using) == (200, {f"Outbox(database={using!r})": "OK"})


@pytest.mark.usefixtures("troubled")
def test_a_critical_verdict_fails_the_check_and_its_report_names_no_key():
    assert report("plain") == (500, {"Outbox(database=None)": "Unavailable: not_delivering (default)"})


WARNINGS = ("paused (default)", "blocked (default)", "not_receiving (default)", "failed (default)")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("plain", (200, {"Outbox(database=None)": "OK"})),
        ("strict", (500, {"Outbox(database=None)": f"Warning: {', '.join(WARNINGS)}"})),
    ],
)
def test_a_warning_fails_the_check_only_if_asked(page: str, expected: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(readings, "status", lambda using: troubled_status(using, verdicts=VERDICTS[1:]))
    assert report(page) == expected


@pytest.mark.usefixtures("troubled")
def test_no_format_of_the_report_names_a_key():
    for kind in ("json", "text", "openmetrics", "atom"):
        content = Client().get(f"/strict/?format={kind}").content.decode()
        assert "Outbox" in content
        assert SECRET not in content


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_an_unavailable_database_fails_the_check(using: str, unreachable: Unreachable):
    with unreachable(using):
        status, found = report(using)
    assert (status, found) == (
        500,
        {f"Outbox(database={using!r})": f"Unavailable: database_unavailable ({using})"},
    )
