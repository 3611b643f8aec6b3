"""Settings of the benchmarks: the servers of DATABASE_URL and AMQP_URL, and this package alone."""

import environ

env = environ.Env()

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_outbox", "django_outbox.inbox"]

DATABASES = {"default": env.db_url("DATABASE_URL", default="sqlite://:memory:")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Several threads take turns to write.
    DATABASES["default"]["OPTIONS"] = {
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
    }
# A relay's process works on the benchmark's temporary database.
DATABASES["default"]["NAME"] = env.str("BENCHMARK_DATABASE", default=DATABASES["default"]["NAME"])

AMQP_URL = env.str("AMQP_URL", default="")

OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "tests.benchmarks.workspace.AcceptingPublisher"}}}
