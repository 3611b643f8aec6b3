"""The alert rules and the queries of the dashboard, evaluated by promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from django_outbox.monitoring.prometheus import GAUGES, OutboxCollector
from django_outbox.monitoring.readings import DATABASE_UNAVAILABLE, UNREADABLE
from django_outbox.monitoring.verdicts import CODES
from tests.support.project_files import ROOT, read_yaml

pytest_plugins = ["tests.support.monitoring_fixtures"]

RULES = ROOT / "docs" / "how-to" / "prometheus" / "alerts.yaml"
RULE_TESTS = ROOT / "tests" / "monitoring" / "alerts.test.yaml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "how-to" / "prometheus" / "dashboard.json").read_text())
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"

QUERIES: dict[str, str] = {
    f"{panel['id']}{target['refId']}": target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
}
NAMES = {f"django_outbox_{gauge.name}" for gauge in GAUGES}


def alerts() -> list[dict[str, Any]]:
    [group] = read_yaml(RULES.relative_to(ROOT).as_posix())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def promtool(*arguments: str) -> str:
    """Run promtool, expect that it succeeds, and return what it printed."""
    program = shutil.which("promtool")
    assert program, "promtool is missing. Run `python tests/run.py`, or install the Debian package prometheus."
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


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


@pytest.mark.usefixtures("fresh_figures", "troubled")
def test_each_query_of_the_dashboard_has_data(tmp_path: Path):
    """An alert for each query fires if it has no data."""
    registry = CollectorRegistry()
    registry.register(OutboxCollector())
    exposed = [line.rpartition(" ") for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    rules = [{"alert": name, "expr": f"absent({filled_in(query)})"} for name, query in QUERIES.items()]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    case = {
        "interval": "15s",
        "input_series": [{"series": series, "values": f"{value}x20"} for series, _, value in exposed],
        "alert_rule_test": [{"eval_time": "5m", "alertname": name} for name in QUERIES],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_the_variables_of_the_dashboard_list_databases_and_publishers():
    definitions = {each["name"]: each.get("definition") for each in DASHBOARD["templating"]["list"]}
    assert definitions == {
        "datasource": None,
        "database": "label_values(django_outbox_up, database)",
        "publisher": 'label_values(django_outbox_due_messages{database=~"$database"}, publisher)',
    }


def test_the_dashboard_shows_every_metric():
    shown = {name for query in QUERIES.values() for name in re.findall(r"django_outbox_\w+", query)}
    assert shown == NAMES
