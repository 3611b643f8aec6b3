"""The alert rules, and the dashboard on a real Prometheus that scrapes the shop."""

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import yaml

from django_outbox.monitoring.prometheus import GAUGES
from django_outbox.monitoring.readings import DATABASE_UNAVAILABLE, UNREADABLE
from django_outbox.monitoring.verdicts import CODES
from tests.support.project_files import ROOT, read_yaml
from tests.support.prometheus import PATIENCE, Prometheus, promtool
from tests.support.shop import Process, Server, run_manage, shop_environment
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

RULES = ROOT / "docs" / "how-to" / "prometheus" / "alerts.yaml"
RULE_TESTS = ROOT / "tests" / "monitoring" / "alerts.test.yaml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "how-to" / "prometheus" / "dashboard.json").read_text())
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"

QUERIES = [
    pytest.param(target["expr"], id=f"{panel['id']}{target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
NAMES = {f"django_outbox_{gauge.name}" for gauge in GAUGES}


def alerts() -> list[dict[str, Any]]:
    [group] = read_yaml(RULES.relative_to(ROOT).as_posix())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped a shop with one failed message."""
    folder = tmp_path_factory.mktemp("prometheus")
    database = folder / "shop.sqlite3"
    environment = shop_environment(DATABASE_URL=f"sqlite:///{database}")
    run_manage("migrate", "--verbosity=0", environment=environment)
    server = Server(folder / "server.log", environment)
    with ExitStack() as stack:
        stack.callback(server.kill)
        assert server.order()[0] == 201
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(
                "UPDATE django_outbox_outboxmessage SET available_at = NULL, failed_at = CURRENT_TIMESTAMP "
                "WHERE publisher = 'default'"
            )
            connection.execute(
                "INSERT INTO django_outbox_heartbeat (relay, host, pid, version, mode, workers, publishers, consumers, "
                "processed, retried, failed, started_at, seen_at) "
                "VALUES ('a:1:inbox', 'a', 1, '', 'run', 1, '{}', ?, 0, 0, 0, CURRENT_TIMESTAMP, '2100-01-01')",
                [json.dumps({"orders": {"source": "queue", "state": "reading", "received": 1}})],
            )
        arguments = ("run_outbox", "--publisher", "handlers")
        relay = Process([sys.executable, "manage.py", *arguments], folder / "relay.log", environment)
        stack.callback(relay.kill)
        targets = {server.address.removeprefix("http://"): "/outbox/metrics/"}
        with Prometheus(folder, targets, RULES) as prometheus:
            eventually(lambda: prometheus.query("django_outbox_up"), "the shop was scraped", seconds=PATIENCE)
            yield prometheus


def filled_in(expression: str) -> str:
    """Return an expression as Grafana sends it, if "All" is chosen for each variable."""
    return re.sub(r"\$(database|publisher)", ".*", expression).replace("$__rate_interval", "1m")


def test_the_alert_rules_are_valid():
    assert f"SUCCESS: {len(alerts())} rules found" in promtool("check", "rules", "--lint-fatal", str(RULES))


def test_each_alert_fires_when_it_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", str(RULE_TESTS))


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    cases = [case for group in yaml.safe_load(RULE_TESTS.read_text())["tests"] for case in group["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_watches_what_exists_and_links_to_a_section_that_names_it(rule: dict[str, Any]):
    names = set(re.findall(r"django_outbox_\w+", rule["expr"]))
    assert names
    assert names <= NAMES
    assert set(re.findall(r'code="(\w+)"', rule["expr"])) <= {*CODES, DATABASE_UNAVAILABLE, UNREADABLE}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "https://django-transactional-outbox.readthedocs.io/en/latest/how-to/troubleshooting.html"
    section = re.search(rf"^\({anchor}\)=\n## (.*?)(?=^\(|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section, anchor
    assert f"`{rule['alert']}`" in section[1]


@pytest.mark.parametrize("code", [*CODES, DATABASE_UNAVAILABLE, UNREADABLE])
def test_the_page_about_alerts_has_a_section_with_an_alert_for_each_code_of_a_verdict(code: str):
    page = PAGE.read_text()
    if code in ("delivering", "idle"):
        assert f"`{code}`" in page
    else:
        section = page.partition(f"({code.replace('_', '-')})=\n## ")[2].partition("\n(")[0]
        assert f"`{code}`" in section
        assert any(f"`{rule['alert']}`" in section for rule in alerts())


@pytest.mark.parametrize("expression", QUERIES)
def test_a_query_of_the_dashboard_has_data(prometheus: Prometheus, expression: str):
    # A scrape that takes a second is given up, and then its series have no data until the next one.
    eventually(lambda: prometheus.query(filled_in(expression)), expression, seconds=PATIENCE)


def test_the_dashboard_shows_what_is_in_the_database(prometheus: Prometheus):
    [panel] = (panel for panel in DASHBOARD["panels"] if (panel["type"], panel["title"]) == ("stat", "Failed"))
    [target] = panel["targets"]
    [sample] = eventually(lambda: prometheus.query(filled_in(target["expr"])), seconds=PATIENCE)
    assert float(sample["value"][1]) == 1


def test_the_variables_of_the_dashboard_list_databases_and_publishers(prometheus: Prometheus):
    values = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", filled_in(variable["definition"])).groups()  # type: ignore[union-attr]
            values[variable["name"]] = prometheus.get(f"label/{label}/values", **{"match[]": metric})
    assert values == {"database": ["default"], "publisher": ["celery", "default", "handlers"]}


def test_the_dashboard_shows_every_metric():
    shown = {name for query in QUERIES for name in re.findall(r"django_outbox_\w+", str(query.values[0]))}
    assert shown == NAMES


def test_an_alert_fires_on_a_real_prometheus(prometheus: Prometheus):
    def firing() -> list[str]:
        found = prometheus.get("alerts")["alerts"]
        return [alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"]

    eventually(lambda: "OutboxFailedMessages" in firing(), "the alert fires", seconds=PATIENCE)
