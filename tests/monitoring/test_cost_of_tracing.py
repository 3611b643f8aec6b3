"""Without a tracing library, or while none is in use, the tracer is not even imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
import json, sys
{prepare}
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="only for tests",
    USE_TZ=True,
    INSTALLED_APPS=["django_outbox"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    OUTBOX={{"PUBLISHERS": {{"default": {{"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}}}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from django_outbox import OutboxMessage, enqueue
from django_outbox.relay import Relay
call_command("migrate", verbosity=0)
with transaction.atomic():
    enqueue("order.created", 1)
Relay().deliver_once()
print(json.dumps({{"left": OutboxMessage.objects.pending().count(),
    "modules": [name for name, module in sys.modules.items() if module is not None
                and (name.split(".")[0] == "opentelemetry" or name == "django_outbox.monitoring.tracing")]}}))
"""


def run(prepare: str) -> Any:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(prepare=prepare)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    "prepare",
    ['sys.modules["opentelemetry"] = None', ""],
    ids=["not installed", "installed but not imported"],
)
def test_without_a_library_in_use_nothing_of_it_is_imported(prepare: str):
    assert run(prepare) == {"left": 0, "modules": []}


def test_an_incomplete_library_changes_nothing():
    found = run('import types; sys.modules["opentelemetry.trace"] = types.ModuleType("opentelemetry.trace")')
    assert found["left"] == 0
