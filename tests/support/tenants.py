"""A project with the real django-tenants, and a schema for each tenant."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.support.databases import Database

PROJECT = """
DATABASES = {"default": DATABASE}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
ADMIN = [f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes", "messages", "sessions")]
SHARED_APPS = ["django_tenants", "customers", *ADMIN]
TENANT_APPS = [*ADMIN]
INSTALLED_APPS = [*SHARED_APPS, "django_outbox"]
LIST.append("django_outbox")
TENANT_MODEL, TENANT_DOMAIN_MODEL = "customers.Client", "customers.Domain"
MIDDLEWARE = [
    "django_tenants.middleware.main.TenantMainMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF, STATIC_URL, SECRET_KEY, ALLOWED_HOSTS = "customers.urls", "/static/", "secret", ["*"]
OUTBOX = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"},
        "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"},
    },
    "ROUTES": {"order.*": ["handlers"]},
}
"""

CUSTOMERS = """
from django_tenants.models import DomainMixin, TenantMixin

class Client(TenantMixin):
    auto_drop_schema = True

class Domain(DomainMixin):
    pass
"""

URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""

HANDLERS = """
import time

from django.db import connection
from django_outbox.handlers import handler
from django_tenants.utils import schema_context

@handler("order.paid")
def work(payload, message):
    with schema_context(message.headers["schema"]), connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        print("handled in", *cursor.fetchone())

@handler("order.seen")
def see(payload, message):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        print(type(connection.tenant).__name__, connection.tenant.schema_name, "in", *cursor.fetchone(), flush=True)

@handler("order.slow")
def work_slowly(payload, message):
    time.sleep(0.4)
    print("slow order", flush=True)
"""

CREATE = """
from django.core.management import call_command

call_command("makemigrations", "customers")
call_command("migrate_schemas", shared=True)

from customers.models import Client, Domain

for schema in ("t1", "t2"):
    tenant = Client.objects.create(schema_name=schema)
    Domain.objects.create(domain=f"{schema}.localhost", tenant=tenant)
"""


@dataclass
class Project:
    """A project with the tenants t1 and t2; calling it runs a command."""

    folder: Path
    database: Database
    environment: dict[str, str]
    shell: "subprocess.Popen[str]"

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "django", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=self.environment, cwd=self.folder
        )

    @contextmanager
    def relay(self, *arguments: str) -> "Iterator[RunningRelay]":
        """Run a relay until the end of the block, and then stop it."""
        with (self.folder / "relay.log").open("w") as log:
            command = [sys.executable, "-m", "django", "run_outbox", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=self.folder)
            relay = RunningRelay(process, Path(log.name))
            try:
                yield relay
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, relay.output
            finally:
                process.kill()
                process.wait()

    def do(self, script: str) -> str:
        """Run Python in a process of the project that has started before, and return what it prints."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"{json.dumps(script)}\n")
        self.shell.stdin.flush()
        error, output = json.loads(self.shell.stdout.readline())
        assert not error, error
        return str(output)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.rows(statement)

    def pending(self, schema: str) -> int:
        return int(self.sql(f"SELECT count(*) FROM {schema}.{TABLE} WHERE available_at IS NOT NULL")[0][0])


@dataclass
class RunningRelay:
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()


TABLE = "django_outbox_outboxmessage"

SHELL = """
import contextlib, io, json, sys, traceback
import django

django.setup()
from django.db import connection

for line in sys.stdin:
    output, error = io.StringIO(), ""
    connection.set_schema_to_public()
    with contextlib.redirect_stdout(output):
        try:
            exec(json.loads(line), {})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([error, output.getvalue()]))
"""


@contextmanager
def project(folder: Path, apps: str) -> Iterator[Project]:
    """Make a project with the tenants t1 and t2, whose setting `apps` lists the outbox."""
    with Database("postgresql") as database:
        keys = ("HOST", "PORT", "USER", "PASSWORD")
        server = {key: settings.DATABASES["postgresql"][key] for key in keys}
        entry = {**server, "ENGINE": "django_tenants.postgresql_backend", "NAME": database.name}
        configured = PROJECT.replace("DATABASE}", f"{entry!r}}}").replace("LIST", apps)
        (folder / "tenants_project.py").write_text(configured)
        (folder / "customers").mkdir()
        (folder / "customers" / "__init__.py").touch()
        (folder / "customers" / "models.py").write_text(CUSTOMERS)
        (folder / "customers" / "urls.py").write_text(URLS)
        (folder / "customers" / "handlers.py").write_text(HANDLERS)
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tenants_project", "PYTHONPATH": str(folder)}
        command, pipe = [sys.executable, "-u", "-c", SHELL], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder) as shell:
            try:
                made = Project(folder, database, environment, shell)
                made.do(CREATE)
                yield made
            finally:
                shell.kill()
