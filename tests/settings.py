"""The settings of the test run: one alias for each database that the outbox knows, so that one suite runs on all."""

import os
import tempfile
from pathlib import Path

import django
import environ

env = environ.Env()

# Two runs at once on one machine need test databases of their own.
RUN = os.environ.get("OUTBOX_TEST_RUN", "")

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "Europe/Zurich"
ROOT_URLCONF = "tests.support.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": env.db_url_config("sqlite:///:memory:"),
    "postgresql": env.db_url("POSTGRES_URL", default="postgres://postgres@127.0.0.1:5432/postgres"),
    "mariadb": env.db_url("MARIADB_URL", default="mysql://root@127.0.0.1:3306/test"),
}
# An optional fourth database, which runs the tests of MariaDB too.
if env.str("MYSQL_URL", default=""):
    DATABASES["mysql"] = env.db_url("MYSQL_URL")
DATABASES["default"]["TEST"] = {"NAME": str(Path(tempfile.gettempdir()) / f"outbox_tests{RUN}.sqlite3")}
# Nothing here has to survive a crash of the machine.
DATABASES["default"]["OPTIONS"] = {"timeout": 20, "init_command": "PRAGMA synchronous = OFF"}
for alias in DATABASES.keys() - {"default"}:
    DATABASES[alias]["TEST"] = {"NAME": f"test_outbox{RUN}"}

AMQP_URL = env.str("AMQP_URL", default="amqp://guest:guest@127.0.0.1:5672/%2F")
# A database of its own; the tests delete only the keys that they have written.
REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/11")

# JetStream must be enabled.
NATS_URL = env.str("NATS_URL", default="nats://127.0.0.1:4222")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_outbox",
    "django_outbox.inbox",
]
if django.VERSION >= (6, 0):
    INSTALLED_APPS.append("django_outbox.contrib.django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    # A live server has one middleware for the whole run.
    "tests.support.policy.add_policy",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
# What protects passwords is slow on purpose, and here are none to protect.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

OUTBOX = {
    "PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}},
}
