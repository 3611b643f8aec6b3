"""The public API, the imports between modules, and what relays are composed of."""

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
from tests.support.project_files import read_pyproject

PACKAGE = Path(django_outbox.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "migrations" not in path.parts
}
CONTRACTS = read_pyproject()["tool"]["importlinter"]["contracts"]
DRIVERS: dict[str, list[str]] = {
    driver: contract["allowed_importers"] for contract in CONTRACTS for driver in contract.get("protected_modules", ())
}
"""Optional dependencies, and the modules that may import each one."""


DJANGO_TASKS = "django_outbox.contrib.django_tasks"
"""An app of its own, which needs Django 6.0 and must be installed."""


def needs(module: str, driver: str) -> bool:
    return within(module, *DRIVERS[driver])


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


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
        pytest.skip("django.tasks is part of Django 6.0 and newer")
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(public_api.exported(module))
    for name in imported.__all__:
        assert hasattr(imported, name), name


def test_every_public_class_and_function_has_a_docstring():
    definitions = {
        f"{module}.{name}": public_api.find(module, name)[1]
        for module in public_api.MODULES
        for name in public_api.exported(module)
    }
    kinds = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    documented = {name: node for name, node in definitions.items() if isinstance(node, kinds)}
    assert len(documented) > 50
    assert [name for name, node in documented.items() if not ast.get_docstring(node)] == []


def test_an_unknown_name_raises_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'send'"):
        django_outbox.send  # noqa: B018


def test_importing_the_package_needs_no_settings_and_imports_no_models():
    printed = run_python("import sys, django_outbox; print(*sys.modules)")
    loaded = {name for name in printed.split() if within(name, "django", "django_outbox")}
    assert loaded == {"django_outbox", "django_outbox.utils", "django_outbox.utils.lazy"}


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
    OUTBOX={{"PUBLISHERS": {{"default": {{"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}}}},
)
django.setup()
for name in {modules!r}:
    importlib.import_module(name)
print("imported", {len(modules)})
"""
    )
    assert printed == f"imported {len(modules)}\n"


def test_imports_follow_the_layers():
    """Every module has a layer in `pyproject.toml`; a module without one fails here too."""
    # In a separate process, because it configures logging.
    run_python("from importlinter.cli import lint_imports; raise SystemExit(lint_imports())")


VALUES = {"NamedTuple", "enum.Enum", "Exception", "ServiceLimits"}
"""Bases without behaviour."""


@pytest.mark.parametrize(
    "module", [name for name in MODULES if within(name, "django_outbox.relay", "django_outbox.service")]
)
def test_no_class_of_a_relay_inherits_behaviour(module):
    classes = [node for node in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(node, ast.ClassDef)]
    assert {ast.unparse(base) for each in classes for base in each.bases} <= VALUES
