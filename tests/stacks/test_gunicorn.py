"""gunicorn with gevent's workers, and with `--preload`."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stacks.support import Project, get
from tests.support.children import children_of
from tests.support.ports import free_port
from tests.support.shop import PATIENCE
from tests.support.waiting import eventually

PACKAGES = ("Django==6.1.3", "psycopg[binary]==3.3.9", "gunicorn[gevent]==27.0.1", "gevent==26.9.0")
POSTGRESQL = True

HANDLER = """\
from django_outbox.handlers import handler

handler("order.created")(print)
"""


@pytest.mark.parametrize("workers", [["--worker-class=gevent"], ["--preload"], ["--preload", "--worker-class=gevent"]])
def test_requests_enqueue_and_wake_a_relay(workers: list[str], project: Project):
    project.write("mysite/handlers.py", HANDLER)
    if len(workers) == 2:
        # gunicorn patches too late for what is loaded before the fork: Django's connections would not be thread-safe.
        project.write("gunicorn.conf.py", "from gevent.monkey import patch_all\npatch_all()\n")
    # `runserver` would deliver in a thread of its process.
    project.configure("""
DEBUG = True
OUTBOX = {
    "PUBLISHERS": {"default": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}},
    "DELIVER_IN_RUNSERVER": True,
    # Only a notification can wake the relay in time.
    "POLL_INTERVAL": 3600,
}""")
    project.migrate()
    port = free_port()
    server = project.start("gunicorn", "mysite.wsgi", f"--bind=127.0.0.1:{port}", "--workers=2", *workers)
    relay = project.start("django-admin", "run_outbox")
    relay.until_it_says("started")
    address = f"http://127.0.0.1:{port}/orders"

    get(f"{address}/first/")
    eventually(lambda: project.count("processed_at IS NOT NULL") == 1, "a relay is notified", seconds=PATIENCE)
    with ThreadPoolExecutor(10) as pool:
        answers = [json.loads(body) for body in pool.map(lambda number: get(f"{address}/{number}/"), range(400))]
    assert len({answer["process"] for answer in answers}) == 2
    eventually(lambda: project.count("processed_at IS NOT NULL") == 401, seconds=PATIENCE)
    assert project.count(table="mysite_order") == 401
    assert get(f"{address}/lost/?fail", status=500)
    assert project.count() == project.count(table="mysite_order") == 401
    assert children_of(server.pid)
    # Neither the parent nor a request left a session of its own.
    server.stop()
    relay.stop()
    assert "Traceback" not in relay.output
    eventually(lambda: not project.sessions(), "no session is left")
