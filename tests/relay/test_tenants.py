"""Schemas of tenants, with django-tenants: a relay and its threads work in the schema of their caller."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tenants import Project, project
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

SCRIPT = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django_tenants.postgresql_backend", "NAME": "unused", "OPTIONS": OPTIONS}},
    INSTALLED_APPS=["django.contrib.contenttypes"],
)
django.setup()

from django.db import connection, connections
from django_outbox.utils.threads import Threads, own_connection

found = []

def work():
    with own_connection("default"):
        found.append(connections["default"].schema_name)
        inner = Threads()
        inner.start(lambda: found.append(connections["default"].schema_name), name="inner")
        inner.wait()

connection.set_schema("t1")
threads = Threads()
threads.start(work, name="outer")
threads.wait()
print(*found, *threads.errors)
"""


def schemas_of_threads(options: str) -> str:
    script = SCRIPT.replace("OPTIONS}", f"{options}}}")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("options", ["{}", '{"pool": True}'], ids=["", "pool"])
def test_threads_begin_in_the_schema_of_their_caller(options: str):
    assert schemas_of_threads(options) == "t1 t1"


ENQUEUE = """
from django.db import transaction
from django_outbox import OutboxMessage, enqueue
from django_tenants.utils import schema_context

for schema in ("t1", "t2"):
    with schema_context(schema), transaction.atomic():
        enqueue(f"of-{schema}", 1)
"""

PAY = """
from django.db import connection, transaction
from django_outbox import enqueue
from django_tenants.utils import schema_context

for name in ("t1", "t2"):
    with schema_context(name), transaction.atomic():
        schema = connection.schema_name
        enqueue("order.paid", {"id": 1}, key=f"{schema}.order-1", headers={"schema": schema})
"""

PENDING = """
from django_outbox import OutboxMessage
from django_tenants.utils import schema_context

for schema in ("t1", "t2"):
    with schema_context(schema):
        print(schema, OutboxMessage.objects.pending().count())
"""

ADMIN = """
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import reverse
from django.utils import timezone
from django_outbox import OutboxMessage, enqueue
from django_tenants.utils import schema_context

for schema in ("t1", "t2"):
    with schema_context(schema), transaction.atomic():
        user = User.objects.create_superuser("ada")
        failed = enqueue(f"of-{schema}", 1)
        mine = OutboxMessage.objects.filter(pk=failed.pk)
        mine.update(available_at=None, failed_at=timezone.now(), error_class="Rejected", error="no")
        if schema == "t1":
            client = Client(headers={"host": "t1.localhost"})
            client.force_login(user)
            id = failed.pk

setup_test_environment()
listed = reverse("admin:django_outbox_outboxmessage_changelist") + "?state=failed"
for url in (listed, reverse("admin:django_outbox_overview_changelist")):
    page = client.get(url)
    print(page.status_code, "of-t1" in page.content.decode(), "of-t2" in page.content.decode())
asked = client.post(listed, {"action": "requeue", "_selected_action": [id], "index": 0}).context
client.post(asked["action_url"], {"state": asked["state"]})
for schema in ("t1", "t2"):
    with schema_context(schema):
        print(schema, OutboxMessage.objects.failed().count())
        OutboxMessage.objects.all().delete()
"""

UNREADABLE = """
import logging
from django_outbox.monitoring.readings import read
from django_tenants.utils import schema_context

lines, handler = [], logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("django_outbox").addHandler(handler)
for schema in ("public", "t9", "public", "t9"):
    with schema_context(schema):
        read("default")
print(len(lines), "cannot be read" in lines[0])
"""

NOTIFY = """
from django.db import connection, connections
from django_outbox.stores import get_store
from django_outbox.stores.notifications import listen, notify

connection.set_schema("t1")
heard = listen(get_store(connection), 1.0)
while next(heard) is not None:
    pass
sender = connections.create_connection("default")
for schema in ("t2", "t1"):
    sender.set_schema(schema)
    notify(get_store(sender), ["default"])
    print(schema, *(alias for _, alias in next(heard)))
"""


@pytest.fixture(scope="module")
def manage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Run a command in a project whose tenants have an outbox each."""
    with project(tmp_path_factory.mktemp("tenants"), "TENANT_APPS") as run:
        yield run


def test_a_relay_delivers_the_messages_of_its_schema(manage: Project):
    manage.do(ENQUEUE)
    done = manage("tenant_command", "run_outbox", "--drain", "--schema=t1")
    assert done.returncode == 0, done.stderr
    assert "of-t1" in done.stdout
    assert "of-t2" not in done.stdout
    assert manage.do(PENDING).split() == ["t1", "0", "t2", "1"]


def test_in_a_schema_without_the_table_the_command_for_tenants_is_named(manage: Project):
    done = manage("run_outbox")
    assert done.returncode == 1
    assert "tenant_command run_outbox --schema=" in done.stderr
    assert "--fake" not in done.stderr


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ("", ""),
        ("TENANT_APPS.remove('django_outbox')", "'django_outbox' is in neither SHARED_APPS nor TENANT_APPS"),
        ("SHARED_APPS.append('django_outbox.apps.DjangoOutboxConfig')", "is in SHARED_APPS and TENANT_APPS"),
        ("INSTALLED_APPS.append('django_outbox.inbox')", "'django_outbox.inbox' is in neither"),
        ("SHARED_APPS.append('django_outbox.inbox'); INSTALLED_APPS += SHARED_APPS[-1:]", "is in SHARED_APPS.\n"),
    ],
)
def test_lists_of_apps_in_which_the_outbox_does_not_work_are_reported(manage: Project, lists: str, problem: str):
    (manage.folder / "lists_project.py").write_text(f"from tenants_project import *\n{lists}\n")
    done = manage("check", "--tag", "django_outbox", "--settings", "lists_project")
    assert done.stderr.count("(django_outbox.W047)") == bool(problem), done.stderr
    assert problem in done.stderr


def test_a_notification_wakes_the_relay_of_its_schema_only(manage: Project):
    assert manage.do(NOTIFY).splitlines() == ["t2", "t1 default"]


def test_an_outbox_that_cannot_be_read_is_logged_once_for_each_schema(manage: Project):
    assert manage.do(UNREADABLE).strip() == "2 True"


def test_the_admin_shows_and_requeues_the_messages_of_the_schema_of_the_request(manage: Project):
    lines = manage.do(ADMIN).splitlines()
    assert lines == ["200 True False", "200 True False", "t1 0", "t2 1"]


def test_one_relay_delivers_the_messages_of_all_tenants_from_a_shared_table(tmp_path: Path):
    with project(tmp_path, "SHARED_APPS") as manage:
        manage.do(PAY)
        done = manage("run_outbox", "--drain")
        assert done.returncode == 0, done.stderr
        assert "handled in t1" in done.stdout
        assert "handled in t2" in done.stdout
        assert manage.do(PENDING).split() == ["t1", "0", "t2", "0"]
        with manage.relay("--all-schemas") as relay:
            eventually(lambda: "with SHARED_APPS, run run_outbox without --all-schemas" in relay.output)
