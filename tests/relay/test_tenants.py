"""Schemas of tenants, with django-tenants: a relay and its threads work in the schema of their caller."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tenants import Project, project

SCRIPT = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django_tenants.postgresql_backend", "NAME": "unused", "OPTIONS": OPTIONS}},
    INSTALLED_APPS=["django.contrib.contenttypes"],
)
django.setup()

from django.db import connection, connections
from django_outbox.threads import Threads, own_connection

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


def test_threads_begin_in_the_schema_of_their_caller():
    assert schemas_of_threads("{}") == "t1 t1"


def test_connections_that_leave_djangos_pool_keep_the_schema():
    assert schemas_of_threads('{"pool": True}') == "t1 t1"


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

NOTIFY = """
from django.db import connection, connections
from django_outbox.stores import get_store

connection.set_schema("t1")
heard = get_store(connection).listen(1.0)
while next(heard) is not None:
    pass
sender = connections.create_connection("default")
for schema in ("t2", "t1"):
    sender.set_schema(schema)
    get_store(sender).wake(["default"])
    print(schema, next(heard))
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


def test_a_notification_wakes_the_relay_of_its_schema_only(manage: Project):
    assert manage.do(NOTIFY).splitlines() == ["t2 set()", "t1 {'default'}"]


def test_one_relay_delivers_the_messages_of_all_tenants_from_a_shared_table(tmp_path: Path):
    with project(tmp_path, "SHARED_APPS") as manage:
        manage.do(PAY)
        done = manage("run_outbox", "--drain")
        assert done.returncode == 0, done.stderr
        assert "handled in t1" in done.stdout
        assert "handled in t2" in done.stdout
        assert manage.do(PENDING).split() == ["t1", "0", "t2", "0"]
