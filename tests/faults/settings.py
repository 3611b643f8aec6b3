"""Django's settings for the relays and the writers of the fault suite; what differs comes from the environment."""

import json
import os
from typing import Any

import environ

env = environ.Env()

SECRET_KEY = "only for tests"
USE_TZ = True
HANDLERS = env.bool("FAULTS_HANDLERS", default=False)
"""Whether the relays call the handlers of `tests.faults.effects` instead of publishing to a broker."""

INSTALLED_APPS = ["django_outbox", *(["tests.faults.effects"] if HANDLERS else [])]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": env.db_url("FAULTS_DATABASE_URL")}
for database in DATABASES.values():
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = {
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
        }
    else:
        database["OPTIONS"] = {"connect_timeout": 5}

# Only relays publish.
NOWHERE = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}
PUBLISHERS: dict[str, Any] = {**NOWHERE, **json.loads(os.environ.get("FAULTS_PUBLISHERS", "{}"))}
OUTBOX = {"PUBLISHERS": PUBLISHERS, **json.loads(os.environ.get("FAULTS_OUTBOX", "{}"))}
if HANDLERS:
    PUBLISHERS["default"] = {
        "BACKEND": "django_outbox.handlers.HandlersPublisher",
        "RETRY": {"DELAY": 0.01, "MAX_DELAY": 0.05, "MAX_ATTEMPTS": 1000, "EXCLUDE": [LookupError]},
    }
    OUTBOX["RETENTION"] = None
PUBLISHERS["default"] = {**PUBLISHERS["default"], "SOURCE": env.str("FAULTS_SOURCE", default="table")}
if dead := OUTBOX.get("DEAD_LETTER_PUBLISHER"):
    PUBLISHERS.setdefault(dead, NOWHERE["default"])

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(threadName)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_outbox": {"handlers": ["stderr"], "level": "INFO"}},
}
