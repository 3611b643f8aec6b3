"""Consoles whose encoding lacks characters."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from django.conf import settings
from django.core.management import call_command, execute_from_command_line

settings.configure(
    INSTALLED_APPS=["django_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}}},
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
if sys.argv[2] == "prepare":
    import django

    django.setup()
    call_command("migrate", verbosity=0)
    from django_outbox import enqueue
    from django_outbox.models import OutboxMessage

    for type in ("bestellt.\u00fc", "\u6ce8\u6587"):
        enqueue(type, {"name": "\u0434\u0430 \u00e9 \U0001f600"}, require_transaction=False)
        failed = enqueue(type, 1, require_transaction=False)
        OutboxMessage.objects.filter(pk=failed.pk).update(
            failed_at=failed.occurred_at, available_at=None, error="\u2026 \u6ce8")
else:
    execute_from_command_line(["manage.py", *sys.argv[2:]])
"""


def test_each_command_ends_with_its_own_exit_code(tmp_path: Path):
    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "db.sqlite3"), *arguments]
        environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)

    assert run("prepare").returncode == 0
    for code, arguments in (
        (1, ["outbox_status"]),
        (0, ["outbox_requeue", "--all", "--dry-run"]),
        (0, ["outbox_pause", "--publisher", "default", "--type", "\u6ce8\u6587", "--reason", "\u2026"]),
        (0, ["outbox_resume", "--publisher", "default", "--type", "\u6ce8\u6587"]),
        (0, ["run_outbox", "--drain"]),
    ):
        ended = run(*arguments)
        # 1 is the verdict of a warning, too.
        assert (arguments, ended.returncode, b"Traceback" in ended.stderr) == (arguments, code, False), ended.stderr
    assert rb"\u6ce8\u6587" in ended.stdout
