"""The settings of the billing service, which has its own database: `manage.py ... --settings billing.settings`.

It reads the same environment as the shop, except that BILLING_DATABASE_URL names its database: by default
`billing.sqlite3` next to `manage.py`. Without BROKER_URL, its inbox reads the file that the shop's demo writes to.
"""

from project.settings import *  # noqa: F403 - the two services have most settings in common
from project.settings import BASE_DIR, CONSUMER, env, read_database

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_outbox",
    "django_outbox.inbox",
    "billing",
]
ROOT_URLCONF = "billing.urls"

BILLING_DATABASE_URL = env.str("BILLING_DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'billing.sqlite3'}")
DATABASES = {"default": read_database(BILLING_DATABASE_URL)}

OUTBOX = {
    "PUBLISHERS": {
        "default": {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"},
        "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"},
    },
    "CONSUMERS": {"orders": CONSUMER},
}
