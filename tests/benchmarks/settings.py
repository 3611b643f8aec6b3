"""Settings of the benchmarks: the servers that the environment names, and this package alone."""

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

AMQP_URL = env.str("AMQP_URL", default="")
REDIS_URL = env.str("REDIS_URL", default="")
NATS_URL = env.str("NATS_URL", default="")

OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "tests.benchmarks.workspace.AcceptingPublisher"}}}
