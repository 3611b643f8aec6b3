"""Without a tracing library, or while none is in use, tracing costs next to nothing."""

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

def write():
    with transaction.atomic():
        return enqueue("order.created", 1)

def count(function):
    calls = []
    def profile(frame, event, argument):
        if event == "call" and "tracing" in frame.f_code.co_filename.replace("\\\\", "/").rpartition("/")[2]:
            calls.append(frame.f_code.co_name)
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls

relay = Relay()
write()
relay.deliver_once()
calls = {{"write": count(write), "deliver": count(relay.deliver_once)}}
print(json.dumps({{"calls": calls, "left": OutboxMessage.objects.pending().count(),
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
def test_without_a_library_in_use_a_call_costs_three_function_calls_and_a_batch_two(prepare: str):
    found = run(prepare)
    assert found["modules"] == []
    assert found["calls"] == {
        "write": ["find_attribution", "traced", "_find_tracers"],
        "deliver": ["trace_published", "_find_tracers"],
    }
    assert found["left"] == 0


def test_an_incomplete_library_is_reported_once_and_changes_nothing():
    found = run('import types; sys.modules["opentelemetry.trace"] = types.ModuleType("opentelemetry.trace")')
    assert found["left"] == 0
    assert found["calls"]["write"] == ["find_attribution", "traced", "_find_tracers"]
