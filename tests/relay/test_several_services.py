"""Two services in one database, as docs/how-to/databases.md sets them up: no relay takes the other one's messages."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from django.test import override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.handlers import handler
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.databases import Database
from tests.support.effects import HANDLERS, scratch_handlers

PROJECT = """
import os

SERVICE = os.environ["SERVICE"]
DATABASES = {"default": {**SERVER_OPTIONS, "OPTIONS": {"options": f"-c search_path={SERVICE}"}}}
INSTALLED_APPS = ["django_outbox"]
USE_TZ = True
OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}}}
"""

PREPARE = """
from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django_outbox import enqueue

call_command("migrate", verbosity=0)
with transaction.atomic():
    enqueue(f"of-{settings.SERVICE}", 1)
"""


def service(alias: str) -> Any:
    return override_settings(OUTBOX={"PUBLISHERS": {"default": HANDLERS, alias: HANDLERS}})


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_with_aliases_of_its_own_a_service_delivers_its_messages_only(using: str):
    handled: list[str] = []
    with service("billing-handlers"), transaction.atomic(using=using):
        enqueue("invoice.due", 1, publisher="billing-handlers", using=using)
    with service("orders-handlers"), Relay(using=using) as relay:
        assert relay.drain().claimed == 0
    message = OutboxMessage.objects.using(using).pending().get()
    assert message.attempts == 0
    with service("billing-handlers"), scratch_handlers(), Relay(using=using) as relay:
        handler("invoice.due")(lambda payload, message: handled.append(message.type))
        assert relay.drain().processed == 1
    assert handled == ["invoice.due"]


def test_with_a_schema_of_its_own_a_service_delivers_its_messages_only(tmp_path: Path):
    def manage(service: str, *arguments: str) -> str:
        environment = {**os.environ, "SERVICE": service, "DJANGO_SETTINGS_MODULE": "service_settings"}
        environment["PYTHONPATH"] = str(tmp_path)
        command = [sys.executable, "-m", "django", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout

    with Database("postgresql") as database:
        server = {key: settings.DATABASES["postgresql"][key] for key in ("ENGINE", "HOST", "PORT", "USER", "PASSWORD")}
        configured = PROJECT.replace("SERVER_OPTIONS", repr({**server, "NAME": database.name}))
        (tmp_path / "service_settings.py").write_text(configured)
        for name in ("orders", "billing"):
            database.rows(f"CREATE SCHEMA {name}")
            manage(name, "shell", "-c", PREPARE)
        for name in ("orders", "billing"):
            printed = manage(name, "run_outbox", "--drain")
            assert f"of-{name}" in printed
            assert "1 delivered" in printed
