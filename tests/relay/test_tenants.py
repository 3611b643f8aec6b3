"""Schemas of tenants: the threads of a relay begin in the schema of their caller, with the engine of django-tenants."""

import subprocess
import sys

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
