"""What is in the wheel, and what is not."""

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_outbox"


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
def names(wheel: zipfile.ZipFile) -> set[str]:
    return set(wheel.namelist())


def test_every_file_of_the_app_is_in_the_wheel(names):
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= names


@pytest.mark.parametrize("folder", ["locale", "migrations", "templates"])
def test_the_wheel_has_what_is_no_module(names, folder):
    assert [name for name in names if name.startswith(f"django_outbox/{folder}/")]


def test_the_wheel_is_typed_and_translated(names):
    assert {"django_outbox/py.typed", "django_outbox/locale/de/LC_MESSAGES/django.mo"} <= names


def test_the_wheel_has_the_app_alone(names):
    assert {name.split("/")[0] for name in names} == {"django_outbox", "django_transactional_outbox-0.1.0.dist-info"}


def test_the_wheel_carries_its_licence(names):
    assert "django_transactional_outbox-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_extras_are_these(wheel):
    text = wheel.read("django_transactional_outbox-0.1.0.dist-info/METADATA").decode()
    metadata = message_from_string(text)
    assert metadata.get_all("Provides-Extra") == ["all", "celery", "mysql", "postgres", "rabbitmq"]
    assert metadata["Requires-Python"] == ">=3.10"
