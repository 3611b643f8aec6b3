"""The shop's settings. Everything that depends on the environment is read from it, or from `.env`.

| variable       | meaning                                                      | default                          |
| -------------- | ------------------------------------------------------------ | -------------------------------- |
| DEBUG          | development mode                                             | on                               |
| SECRET_KEY     | required if DEBUG is off                                     | a public one                     |
| ALLOWED_HOSTS  | host names that the shop is served under, comma-separated    | this machine                     |
| DATABASE_URL   | `postgres://...`, `mysql://...` or `sqlite:///...`           | POSTGRES_URL, else `db.sqlite3`  |
| POSTGRES_URL   | the same, if DATABASE_URL is not set                         | not set                          |
| BROKER_URL     | `amqp://...`, `redis://...`, `nats://...` or `kafka://...`;  | messages go to the console       |
|                | the first two for Celery as well                             |                                  |
| SHOP_EXCHANGE  | exchange that the outbox publishes to, or prefix of streams  | `shop`                           |
| BILLING_QUEUE  | queue or consumer group of the billing service               | `billing.orders`                 |
| SHOP_QUEUE     | queue that `consume_orders` reads                            | `shop.orders`                    |
| CELERY_QUEUE   | queue of Celery's tasks                                      | `shop.celery`                    |
| DRAIN_EVERY    | seconds between two drains by Celery beat                    | 1                                |
| CLAIM_TIMEOUT  | seconds for which a relay may hold a claim                   | 120                              |
| DEMO_FILE      | file that receives the console publisher's lines in the demo | `demo.jsonl` next to `manage.py` |
"""

from pathlib import Path
from typing import Any

import environ

from django_outbox.beat import beat_schedule
from project.brokers import Names, find_broker

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
env.read_env(BASE_DIR / ".env")


def read_database(url: str) -> dict[str, Any]:
    """Return the settings of a database, given its URL."""
    database: dict[str, Any] = env.db_url_config(url)
    if database["ENGINE"] == "django.db.backends.sqlite3":
        # SQLite has one writer at a time. In WAL mode readers do not wait for it. A transaction that takes the write
        # lock when it begins waits for its turn; one that asks for it later fails at once.
        database["OPTIONS"] = {
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
        }
    return database


DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="public, for development only" if DEBUG else environ.Env.NOTSET)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_outbox",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASE_URL = env.str("DATABASE_URL", default=env.str("POSTGRES_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}"))
DATABASES = {"default": read_database(DATABASE_URL)}

BROKER_URL = env.str("BROKER_URL", default="")
SHOP_EXCHANGE = env.str("SHOP_EXCHANGE", default="shop")
BILLING_QUEUE = env.str("BILLING_QUEUE", default="billing.orders")
SHOP_QUEUE = env.str("SHOP_QUEUE", default="shop.orders")
DEMO_FILE = env.str("DEMO_FILE", default=str(BASE_DIR / "demo.jsonl"))

BROKER = find_broker(BROKER_URL) if BROKER_URL else None
PUBLISHER: dict[str, Any]
if BROKER:
    NAMES = Names(SHOP_EXCHANGE, BILLING_QUEUE)
    PUBLISHER = BROKER.publisher(BROKER_URL, NAMES)
    CONSUMER = BROKER.consumer(BROKER_URL, NAMES)
    SHOP_DESTINATION = BROKER.destination
else:
    PUBLISHER = {"BACKEND": "shop.publishers.RoutedConsolePublisher", "OPTIONS": {"types": ["order.*"]}}
    CONSUMER = {
        "BACKEND": "billing.consumers.FileConsumer",
        "OPTIONS": {"path": DEMO_FILE, "unknown_types": "drop"},
    }
    SHOP_DESTINATION = "shop.destinations.console.ConsoleDestination"

OUTBOX: dict[str, Any] = {
    "PUBLISHERS": {
        "default": PUBLISHER,
        "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"},
        "celery": {
            "BACKEND": "django_outbox.brokers.celery.CeleryPublisher",
            "OPTIONS": {"app": "project.celery:app"},
        },
    },
    "ROUTES": {"order.*": ["default", "handlers"]},
    "CLAIM_TIMEOUT": env.float("CLAIM_TIMEOUT", default=120.0),
}

CELERY_BROKER_URL = BROKER_URL if BROKER and BROKER.celery else "memory://"
# Without a broker for Celery, a task is called at once, in the transaction of the handler that sends it.
CELERY_TASK_ALWAYS_EAGER = CELERY_BROKER_URL == "memory://"
CELERY_TASK_DEFAULT_QUEUE = env.str("CELERY_QUEUE", default="shop.celery")
CELERY_BEAT_SCHEDULE = beat_schedule(drain_every=env.float("DRAIN_EVERY", default=1.0))
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "django_outbox": {"handlers": ["stderr"], "level": "INFO"},
        # A refused order is a normal response, not a warning.
        "django.request": {"level": "ERROR"},
    },
}
