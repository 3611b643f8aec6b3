"""The wheel: its version, its metadata and its files."""

import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message

import pytest

from tests.support.project_files import ROOT, read_pyproject, tox_environments

PACKAGE = ROOT / "django_outbox"
PROJECT = read_pyproject()["project"]
INFO = f"django_transactional_outbox-{PROJECT['version']}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    ended = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_string(wheel.read(f"{INFO}/METADATA").decode())


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_app_and_the_licence_and_nothing_else(wheel):
    names = set(wheel.namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources | {f"{INFO}/licenses/LICENSE"} <= names
    assert {name.split("/")[0] for name in names} == {"django_outbox", INFO}


@pytest.mark.slow
def test_the_metadata_is_that_of_the_project(metadata):
    assert metadata["Version"] == PROJECT["version"]
    assert metadata.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in PROJECT["urls"].items()]


@pytest.mark.slow
def test_the_links_of_the_readme_are_absolute_on_pypi(metadata):
    text, urls = metadata.get_payload(), PROJECT["urls"]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith((urls["Source"], urls["Documentation"]))] == []
    for link in (
        f"![A web process writes the order and its message in one transaction; the relay publishes the message to the "
        f"broker.]({urls['Source']}/raw/main/docs/_static/overview.svg)",
        f"]({urls['Documentation']}how-to/celery.html#celery-beat)",
        f"]({urls['Source']}/blob/main/LICENSE)",
    ):
        assert link in text


def test_the_version_is_written_in_one_place():
    version = re.compile(rf"(?<![\d.]){re.escape(PROJECT['version'])}(?![\d.]\d)")
    code = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "docs" / "conf.py"]
    assert [path.name for path in code if version.search(path.read_text())] == []


def test_the_changelog_describes_the_version():
    [newest, *_] = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest.startswith((f"[Unreleased] {PROJECT['version']}", f"[{PROJECT['version']}]"))


def test_the_classifiers_name_the_versions_of_tox():
    pythons, djangos = (set(versions) for versions in zip(*tox_environments(), strict=True))
    assert {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text} == pythons
    assert {text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if "Django :: " in text} == djangos
