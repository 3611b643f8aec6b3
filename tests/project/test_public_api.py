"""The public API, and the imports between modules."""

import ast
import difflib
import importlib
import subprocess
import sys
from pathlib import Path

import django
import pytest

import django_outbox
from tests.project import public_api

PACKAGE = Path(django_outbox.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "migrations" not in path.parts
}
DRIVERS: dict[str, str | tuple[str, ...] | None] = {
    "pika": ("django_outbox.publishers.rabbitmq", "django_outbox.publishers.celery", "django_outbox.inbox.rabbitmq"),
    "httpcore": "django_outbox.publishers.http",
    "redis": ("django_outbox.publishers.redis", "django_outbox.inbox.redis"),
    "nats": ("django_outbox.publishers.nats", "django_outbox.inbox.nats"),
    "confluent_kafka": ("django_outbox.publishers.kafka", "django_outbox.inbox.kafka"),
    "boto3": "django_outbox.publishers.aws",
    "botocore": "django_outbox.publishers.aws",
    "pydantic": "django_outbox.events.codec",
    "celery": (
        "django_outbox.tasks",
        "django_outbox.celery",
        "django_outbox.publishers.celery",
        "django_outbox.contrib.django_tasks.celery_calls",
        "django_outbox.contrib.django_tasks.priorities",
        "django_outbox.contrib.django_tasks.tasks",
        "django_outbox.testing.celery_calls",
    ),
    "kombu": ("django_outbox.celery", "django_outbox.publishers.celery", "django_outbox.testing.celery_calls"),
    "rich": "django_outbox.management.rich_display",
    "prometheus_client": "django_outbox.monitoring.prometheus",
    "health_check": "django_outbox.contrib.health_check",
    "psycopg": None,
    "MySQLdb": None,
    "opentelemetry": ("django_outbox.monitoring.opentelemetry", "django_outbox.monitoring.tracing"),
    "sentry_sdk": "django_outbox.contrib.sentry",
}
"""Optional dependencies, and the prefixes of the names of the modules that may import each one."""


DJANGO_TASKS = "django_outbox.contrib.django_tasks"
"""An app of its own, which needs Django 6.0 and must be installed."""


def needs(module: str, driver: str) -> bool:
    home = DRIVERS[driver]
    return home is not None and module.startswith(home)


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def imports(module: str) -> set[str]:
    """Return all imports in a module's source: `from a import b` counts as `a` and `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_the_public_api_matches_the_snapshot():
    """Locks the names and signatures that users' projects are written against."""
    locked, found = public_api.SNAPSHOT.read_text(), public_api.describe()
    difference = "\n".join(
        difflib.unified_diff(
            locked.splitlines(), found.splitlines(), "tests/project/public_api.txt", "code", lineterm=""
        )
    )
    assert not difference, (
        f"The public API has changed:\n\n{difference}\n\n"
        "If this is intended, run `python -m tests.project.public_api` to update the snapshot, and describe the change "
        "in CHANGELOG.md."
    )


@pytest.mark.parametrize("module", public_api.MODULES)
def test_every_name_in_all_of_a_public_module_can_be_imported(module):
    if within(module, DJANGO_TASKS) and django.VERSION < (6, 0):
        pytest.skip("Django 5.2 has no django.tasks")
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(public_api.exported(module))
    for name in imported.__all__:
        assert hasattr(imported, name), name


@pytest.mark.parametrize("name", django_outbox.__all__)
def test_a_public_name_can_be_imported_and_has_that_name(name):
    assert getattr(django_outbox, name).__name__ == name


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'send'"):
        django_outbox.send  # noqa: B018


def test_importing_the_package_needs_no_settings_and_imports_no_models():
    printed = run_python("import sys, django_outbox; print(*sys.modules)")
    loaded = {name for name in printed.split() if within(name, "django", "django_outbox")}
    assert loaded == {"django_outbox"}


def test_the_beat_schedule_can_be_imported_by_settings():
    """Settings import it before Django is set up, and it must not import Celery."""
    printed = run_python("import sys, django_outbox.beat; print(*sys.modules)")
    assert not [name for name in printed.split() if within(name, "django", "celery")]


def test_every_other_module_can_be_imported_without_the_drivers():
    """Every module that needs no driver is imported with all drivers blocked, in a project with SQLite."""
    modules = [
        name
        for name in MODULES
        if not any(needs(name, driver) for driver in DRIVERS) and not within(name, DJANGO_TASKS)
    ]
    printed = run_python(
        f"""
import importlib, sys
sys.modules.update(dict.fromkeys({list(DRIVERS)!r}))
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django_outbox"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    OUTBOX={{"PUBLISHERS": {{"default": {{"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}}}}}},
)
django.setup()
for name in {modules!r}:
    importlib.import_module(name)
print("imported", {len(modules)})
"""
    )
    assert printed == f"imported {len(modules)}\n"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_is_imported_only_by_the_modules_that_need_it(driver):
    strangers = [
        module
        for module in MODULES
        if not needs(module, driver) and any(within(name, driver) for name in imports(module))
    ]
    assert strangers == []


def test_imports_follow_the_layers():
    """Every module has a layer in `pyproject.toml`; a module without one fails here too."""
    # In a separate process, because it configures logging.
    run_python("from importlinter.cli import lint_imports; raise SystemExit(lint_imports())")
