"""Django's settings of a soak: the defaults, except that old messages are archived and deleted within minutes."""

import datetime
import json
import os

import environ

env = environ.Env()

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_outbox"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": env.db_url("SOAK_DATABASE_URL")}
STORAGES = {
    "archive": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": env.str("SOAK_ARCHIVE")},
    },
}
OUTBOX = {
    "PUBLISHERS": {"default": json.loads(os.environ["SOAK_PUBLISHER"])},
    "RETENTION": datetime.timedelta(minutes=15),
    "ARCHIVE": {"storage": "archive", "interval": 300},
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(threadName)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_outbox": {"handlers": ["stderr"], "level": "INFO"}},
}
