"""django-celery-beat: the schedule of the outbox is in the database."""

import uuid
from collections.abc import Iterator

import pytest
from django.conf import settings

from tests.stacks.support import Project
from tests.support.shop import PATIENCE, broker_channel
from tests.support.waiting import eventually

PACKAGES = (
    # pip installs django-celery-beat 2.1 next to Django 6.1, because 2.9 does not allow that.
    "Django==6.0.9",
    "psycopg[binary]==3.3.9",
    "celery==5.7.0",
    "django-celery-beat==2.9.0",
)
POSTGRESQL = True

CELERY = """\
from celery import Celery

app = Celery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""


@pytest.fixture
def queue(project: Project) -> Iterator[str]:
    name = f"outbox-test-{uuid.uuid4().hex[:8]}"
    project.write("mysite/celery.py", CELERY)
    project.write("mysite/__init__.py", "from .celery import app as celery_app")
    project.configure(f"""
from django_outbox.beat import beat_schedule
INSTALLED_APPS += ["django_celery_beat"]
CELERY_BROKER_URL = {settings.AMQP_URL!r}
CELERY_TASK_DEFAULT_QUEUE = {name!r}
CELERY_BEAT_SCHEDULE = {{**beat_schedule(drain_every=1)}}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
""")
    project.migrate()
    yield name
    project.stop()
    with broker_channel() as channel:
        channel.queue_delete(name)
        channel.exchange_delete(name)


def test_a_worker_delivers_by_the_schedule_in_the_database(project: Project, queue: str):
    project.start("celery", "-A", "mysite", "beat", "--pidfile=", "--loglevel=info").until_it_says("beat: Starting")
    project.start("celery", "-A", "mysite", "worker", "--concurrency=2", f"--hostname={queue}")
    project.place_orders(50)
    eventually(lambda: project.count("processed_at IS NOT NULL") == 50, seconds=PATIENCE)


def test_runs_that_no_worker_has_started_expire(project: Project, queue: str):
    project.start("celery", "-A", "mysite", "beat", "--pidfile=")
    with broker_channel() as channel:
        channel.queue_declare(queue, durable=True)
        _, properties, _ = eventually(lambda: (got := channel.basic_get(queue, auto_ack=True))[0] and got)
    assert properties.headers["task"] == "django_outbox.tasks.drain_outbox"
    assert properties.headers["expires"], properties.headers
