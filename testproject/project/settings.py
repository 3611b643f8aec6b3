"""The shop's settings. Everything that differs from place to place comes from the environment, or from `.env`.

| variable       | means                                                        | default                     |
| -------------- | ------------------------------------------------------------ | --------------------------- |
| DEBUG          | development mode                                             | on                          |
| SECRET_KEY     | must be set where DEBUG is off                               | a public one                |
| ALLOWED_HOSTS  | the names the shop is served under, with commas              | this machine                |
| DATABASE_URL   | `postgres://...`, `mysql://...` or `sqlite:///...`           | `db.sqlite3` by `manage.py` |
| AMQP_URL       | RabbitMQ, for the outbox and for Celery                      | messages go to the console  |
| SHOP_EXCHANGE  | the exchange that the outbox publishes to                    | `shop`                      |
| SHOP_QUEUE     | the queue that `consume_orders` reads                        | `shop.orders`               |
| CELERY_QUEUE   | the queue of Celery's tasks                                  | `shop.celery`               |
| DRAIN_EVERY    | seconds between two drains by Celery beat                    | 1                           |
| DEMO_FILE      | where the demo sends the console's lines                     | `demo.jsonl` by `manage.py` |
"""

from pathlib import Path

import environ

from django_outbox.beat import beat_schedule

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()
env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="public, and good for development only" if DEBUG else environ.Env.NOTSET)
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
    "benchmarks",
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

DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # SQLite has one writer at a time. Readers do not wait for it in WAL mode, and a transaction that asks for the
    # lock when it begins waits for its turn, where one that asks in the middle fails at once.
    DATABASES["default"]["OPTIONS"] = {
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
    }

AMQP_URL = env.str("AMQP_URL", default="")
SHOP_EXCHANGE = env.str("SHOP_EXCHANGE", default="shop")
SHOP_QUEUE = env.str("SHOP_QUEUE", default="shop.orders")
DEMO_FILE = env.str("DEMO_FILE", default=str(BASE_DIR / "demo.jsonl"))

if AMQP_URL:
    PUBLISHER = {
        "BACKEND": "django_outbox.publishers.rabbitmq.RabbitMQPublisher",
        "OPTIONS": {"url": AMQP_URL, "exchange": SHOP_EXCHANGE, "declare_exchange": "topic"},
    }
else:
    PUBLISHER = {"BACKEND": "shop.publishers.RoutedConsolePublisher", "OPTIONS": {"types": ["order.*"]}}

OUTBOX = {"PUBLISHERS": {"default": PUBLISHER}}

CELERY_BROKER_URL = AMQP_URL or None
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
        # An order that is refused is an answer, not a warning.
        "django.request": {"level": "ERROR"},
    },
}
