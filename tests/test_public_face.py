"""What a user imports, and which module may import what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import django_outbox

PACKAGE = Path(django_outbox.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "migrations" not in path.parts
}
DRIVERS = {
    "pika": "django_outbox.publishers.rabbitmq",
    "celery": "django_outbox.tasks",
    "psycopg": None,
    "MySQLdb": None,
}
"""What only some installations have, and the beginning of the names of the modules that may import it."""


def needs(module: str, driver: str) -> bool:
    home = DRIVERS[driver]
    return home is not None and module.startswith(home)


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def imports(module: str) -> set[str]:
    """Return what a module imports anywhere in its text: `from a import b` counts as `a` and `a.b`."""
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


def test_the_public_names_are_these():
    assert django_outbox.__all__ == [
        "InvalidMessage",
        "OutboxError",
        "OutboxMessage",
        "TransactionRequired",
        "enqueue",
        "enqueue_many",
    ]


@pytest.mark.parametrize("name", django_outbox.__all__)
def test_a_public_name_can_be_imported_and_is_called_so(name):
    assert getattr(django_outbox, name).__name__ == name


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'send'"):
        django_outbox.send  # noqa: B018


def test_importing_the_package_needs_no_settings_and_imports_no_models():
    printed = run_python("import sys, django_outbox; print(*sys.modules)")
    loaded = {name for name in printed.split() if within(name, "django", "django_outbox")}
    assert loaded == {"django_outbox"}


def test_the_schedule_can_be_imported_by_settings():
    """Settings import it before there is a Django or a Celery to speak of."""
    printed = run_python("import sys, django_outbox.beat; print(*sys.modules)")
    assert not [name for name in printed.split() if within(name, "django", "celery")]


def test_everything_can_be_imported_without_the_drivers():
    """What needs no driver is imported with every driver out of reach, on a project with SQLite alone."""
    modules = [name for name in MODULES if not any(needs(name, driver) for driver in DRIVERS)]
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
def test_a_driver_is_imported_only_where_it_is_needed(driver):
    strangers = [
        module
        for module in MODULES
        if not needs(module, driver) and any(within(name, driver) for name in imports(module))
    ]
    assert strangers == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    """Face, then relay, then databases, publishers and the retry policy, then models and settings; never back."""
    forbidden = next((names for beginning, names in FORBIDDEN if within(module, beginning)), ())
    backward = sorted(name for name in imports(module) if within(name, *forbidden))
    assert backward == []


def all_but(*allowed: str) -> tuple[str, ...]:
    """Everything of Django's and ours but these modules: for what is pure."""
    return ("django", *(name for name in MODULES if name not in ("django_outbox", *allowed)))


ABOVE_THE_RELAY = (
    *(module for module in MODULES if module.startswith("django_outbox.admin")),
    "django_outbox.checks",
    "django_outbox.management",
    "django_outbox.progress",
    "django_outbox.tasks",
)
RELAY = (
    "django_outbox.dead_letters",
    "django_outbox.delivery",
    "django_outbox.health",
    "django_outbox.judging",
    "django_outbox.listener",
    "django_outbox.relay",
    "django_outbox.retention",
)
SIDES = ("django_outbox.databases", "django_outbox.publishers", "django_outbox.producing")

FORBIDDEN = (
    ("django_outbox.publishers", (*ABOVE_THE_RELAY, *RELAY, "django_outbox.databases", "django_outbox.models")),
    ("django_outbox.databases", (*ABOVE_THE_RELAY, *RELAY, "django_outbox.publishers", "django_outbox.conf")),
    ("django_outbox.producing", (*ABOVE_THE_RELAY, *RELAY, "django_outbox.publishers")),
    ("django_outbox.delivery", (*ABOVE_THE_RELAY, "django_outbox.relay")),
    ("django_outbox.dead_letters", (*ABOVE_THE_RELAY, "django_outbox.delivery", "django_outbox.relay")),
    ("django_outbox.health", (*ABOVE_THE_RELAY, "django_outbox.relay")),
    ("django_outbox.listener", (*ABOVE_THE_RELAY, "django_outbox.delivery", "django_outbox.relay")),
    ("django_outbox.judging", (*ABOVE_THE_RELAY, "django_outbox.delivery", "django_outbox.relay")),
    ("django_outbox.retention", (*ABOVE_THE_RELAY, "django_outbox.relay", "django_outbox.publishers")),
    ("django_outbox.relay", ABOVE_THE_RELAY),
    ("django_outbox.models", (*ABOVE_THE_RELAY, *RELAY, *SIDES, "django_outbox.conf")),
    ("django_outbox.conf", (*ABOVE_THE_RELAY, *RELAY, *SIDES, "django_outbox.models")),
    ("django_outbox.retry", all_but("django_outbox.messages")),
    ("django_outbox.messages", ("django", "django_outbox")),
    ("django_outbox.waves", all_but("django_outbox.messages")),
    ("django_outbox.breaker", all_but("django_outbox.messages", "django_outbox.retry")),
    ("django_outbox.exceptions", ("django", "django_outbox")),
    ("django_outbox.beat", ("django", "django_outbox")),
)
"""What a module, or those in a package, may not import; the first line that fits counts."""
