"""What a visitor and CI read first: links, YAML files, and lists that must agree with each other."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.jars import KAFKA
from tests.support.project_files import ROOT, read_pyproject, read_yaml, tox_environments
from tests.support.servers import SERVERS

URLS = read_pyproject()["project"]["urls"]
REPOSITORY, DOCUMENTATION = URLS["Source"], URLS["Documentation"]
HOME = DOCUMENTATION.removesuffix("en/latest/")
"""Where the documentation of all versions is."""

RAW = REPOSITORY.replace("https://github.com/", "https://raw.githubusercontent.com/")

TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "pyproject.toml")

ON = True
"""How YAML 1.1 reads the key `on` of a workflow."""


def links(path: str) -> list[str]:
    """Return the absolute links of a text, without the patterns that make links."""
    found = re.findall(r"https://[^\s)\"'<>`]+", (ROOT / path).read_text())
    return [link for link in found if "\\" not in link]


def file_behind(link: str) -> Path | None:
    """Return the file of this checkout that an absolute link leads to, or None for a link to something else."""
    page = link.partition("#")[0]
    for prefix in (f"{REPOSITORY}/blob/main/", f"{RAW}/main/"):
        if page.startswith(prefix):
            return ROOT / page.removeprefix(prefix)
    if page.startswith(HOME):
        name = page.removeprefix(DOCUMENTATION) or "index.html"
        return ROOT / "docs" / f"{name.removesuffix('.html')}.md"
    return None


def jobs() -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(".github/workflows/ci.yml")["jobs"]
    return found


@pytest.mark.parametrize("path", TEXTS)
def test_an_absolute_link_leads_to_a_file_of_the_repository(path: str):
    for link in links(path):
        file = file_behind(link)
        assert file is None or file.is_file(), link


def test_ci_tests_the_versions_of_tox():
    matrix = jobs()["quick-tests"]["strategy"]["matrix"]
    excluded = {(pair["python"], pair["django"]) for pair in matrix["exclude"]}
    pairs = {(python, django) for python in matrix["python"] for django in matrix["django"]} - excluded
    assert pairs == tox_environments()


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-workflows", ".github/workflows/ci.yml"),
        ("github-workflows", ".github/workflows/release.yml"),
        ("compose-spec", "compose.yaml"),
        ("dependabot", ".github/dependabot.yml"),
        ("readthedocs", ".readthedocs.yaml"),
    ],
)
def test_a_file_is_what_its_service_accepts(schema: str, path: str):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", path]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not found.returncode, found.stdout + found.stderr


@pytest.mark.parametrize("name", ["ci", "release"])
def test_a_workflow_pins_actions_by_their_major_version_and_has_limits(name: str):
    workflow = read_yaml(f".github/workflows/{name}.yml")
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[ON]
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 40, job
        for step in job.get("steps", []):
            assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", step.get("uses", "none@v1")), step


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_a_server_is_the_same_everywhere(server: Any):
    composed = read_yaml("compose.yaml")["services"][server.name.lower()]
    of_ci = jobs()["quick-tests"]["services"].get(server.name.lower())
    (port,) = {urlsplit(url).port for url in server.local_urls}
    assert composed["ports"] == [f"127.0.0.1:{port}:{port}"]
    if "command" in composed:
        assert of_ci is None, "a service of GitHub's workflows takes no arguments; tests/run.py starts the server"
    else:
        assert of_ci["image"] == composed["image"]
        assert of_ci["ports"] == [f"{port}:{port}"]
        assert of_ci.get("env", {}) == composed.get("environment", {})


def test_mysql_is_the_same_in_compose_and_ci():
    composed, of_ci = read_yaml("compose.yaml")["services"]["mysql"], jobs()["quick-tests"]["services"]["mysql"]
    assert composed["image"] == of_ci["image"]
    [port] = of_ci["ports"]
    assert composed["ports"] == [f"127.0.0.1:{port}"]
    url = jobs()["quick-tests"]["env"]["MYSQL_URL"]
    assert f":{port.partition(':')[0]}/" in url
    assert url in (ROOT / "compose.yaml").read_text()


def test_the_version_of_kafka_is_the_same_everywhere():
    service = read_yaml(".github/workflows/ci.yml")["jobs"]["everything"]["services"]["kafka"]
    assert service["image"] == f"apache/kafka:{KAFKA.version}"
    assert f"~/.cache/django-outbox/{KAFKA.folder.name}`" in (ROOT / "docs" / "contributing" / "servers.md").read_text()
    major_and_minor = ".".join(KAFKA.version.split(".")[:2])
    assert f"Apache Kafka {major_and_minor}" in (ROOT / "docs" / "how-to" / "kafka.md").read_text()


def test_the_tests_that_ci_runs_once_exist():
    named = re.findall(r"tests/[\w/]+\.py", (ROOT / ".ci" / "run").read_text())
    assert len(named) > 2
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("name", ["django_outbox import enqueue", "django_outbox.events import RecordsEvents"])
def test_an_import_without_the_app_in_the_settings_names_what_to_add(name: str):
    program = (
        "import django\nfrom django.conf import settings\nsettings.configure(INSTALLED_APPS=[])\ndjango.setup()\n"
        f"from {name}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.stderr.splitlines()[-1].endswith("ImproperlyConfigured: Add 'django_outbox' to INSTALLED_APPS.")
