"""One relay for the schemas of many tenants, with django-tenants."""

from collections.abc import Iterator

import pytest

from tests.support.tenants import TABLE, Project, project
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

ENQUEUE = """
from django.db import transaction
from django_outbox import enqueue
from django_tenants.utils import schema_context

for schema in {schemas}:
    with schema_context(schema), transaction.atomic():
        for number in range({count}):
            enqueue("{type}", number, headers={{"schema": schema}})
"""


def enqueue(manage: Project, *schemas: str, type: str = "note", count: int = 1) -> None:
    manage.do(ENQUEUE.format(schemas=schemas, type=type, count=count))


def enqueue_again(manage: Project, schema: str) -> bool:
    enqueue(manage, schema)
    return False


def delivered(manage: Project, schema: str) -> bool:
    return manage.pending(schema) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with project(tmp_path_factory.mktemp("tenants"), "TENANT_APPS") as manage:
        yield manage


@pytest.fixture
def manage(made: Project) -> Iterator[Project]:
    yield made
    for schema in ("t1", "t2"):
        made.sql(f"DELETE FROM {schema}.{TABLE}")


def test_one_relay_delivers_the_messages_of_all_tenants_and_of_new_ones(manage: Project):
    enqueue(manage, "t1", count=2)
    with manage.relay("--all-schemas") as relay:
        eventually(lambda: delivered(manage, "t1"))
        enqueue(manage, "t2")
        eventually(lambda: delivered(manage, "t2"))
        manage.do("from customers.models import Client; Client.objects.create(schema_name='t3')")
        enqueue(manage, "t3")
        eventually(lambda: delivered(manage, "t3"))
        manage.do("from customers.models import Client; Client.objects.get(schema_name='t3').delete(force_drop=True)")
        # It goes on, and handlers run in the schema of their tenant, with the tenant itself.
        enqueue(manage, "t1", "t2", type="order.seen")
        eventually(lambda: delivered(manage, "t1") and delivered(manage, "t2"))
    assert "Client t1 in t1" in relay.output
    assert "Client t2 in t2" in relay.output
    assert "the schemas of all tenants" in relay.output
    assert "6 delivered, 0 will be retried, 0 failed" in relay.output
    assert "Traceback" not in relay.output
    report = "SELECT processed, stopped_at IS NOT NULL FROM {}.django_outbox_heartbeat ORDER BY seen_at DESC LIMIT 1"
    assert manage.sql(report.format("t1")) == [(3, True)]
    assert manage.sql(report.format("t2")) == [(2, True)]


def test_prepared_statements_are_executed_in_the_schema_that_was_set_last(manage: Project):
    """django-tenants sets it when a cursor is made."""
    enqueue(manage, "t1")
    look = "connection.set_schema('{}'); print(get_store(connection).has_due('default'))"
    looks = [look.format(schema) for schema in ("t1", "t2", "t1")]
    imports = "from django.db import connection; from django_outbox.stores import get_store"
    assert manage.do("\n".join([imports, *looks])).split() == ["True", "False", "True"]


def test_a_commit_wakes_the_relay_for_its_schema(manage: Project):
    enqueue(manage, "t1")
    with manage.relay("--all-schemas", "--poll-interval", "3600"):
        # It looks only once, when it starts.
        eventually(lambda: delivered(manage, "t1"))
        enqueue(manage, "t1", "t2")
        # A commit before it listens is not heard.
        eventually(lambda: delivered(manage, "t1") or enqueue_again(manage, "t1"))
        eventually(lambda: delivered(manage, "t2") or enqueue_again(manage, "t2"))


def test_a_schema_without_the_table_does_not_stop_the_others(manage: Project):
    manage.sql(f"ALTER TABLE t1.{TABLE} RENAME COLUMN available_at TO gone")
    try:
        with manage.relay("--all-schemas") as relay:
            eventually(lambda: "Schema 't1' is unavailable: " in relay.output)
            enqueue(manage, "t2")
            eventually(lambda: delivered(manage, "t2"))
            manage.sql(f"ALTER TABLE t1.{TABLE} RENAME COLUMN gone TO available_at")
            enqueue(manage, "t1")
            eventually(lambda: delivered(manage, "t1"))
            eventually(lambda: "Schema 't1' is available again" in relay.output)
    finally:
        if "gone" in str(manage.sql(f"SELECT attname FROM pg_attribute WHERE attrelid = 't1.{TABLE}'::regclass")):
            manage.sql(f"ALTER TABLE t1.{TABLE} RENAME COLUMN gone TO available_at")
    assert relay.output.count("Schema 't1' is unavailable") == 1


@pytest.fixture
def ordinary(manage: Project) -> Iterator[None]:
    """Relays have the rights of the test's login without being a superuser, which no missing right stops."""
    role = f"{manage.database.name}_ordinary"
    if manage.sql("SELECT rolname FROM pg_roles WHERE rolname = CURRENT_USER AND rolsuper"):
        manage.sql(f"CREATE ROLE {role} IN ROLE CURRENT_USER")
        manage.environment["PGOPTIONS"] = f"-c role={role}"
    yield
    if manage.environment.pop("PGOPTIONS", ""):
        manage.sql(f"DROP ROLE {role}")


@pytest.mark.usefixtures("ordinary")
def test_a_missing_right_names_its_schema_and_does_not_stop_the_others(manage: Project):
    manage.sql(f"REVOKE UPDATE ON t1.{TABLE} FROM CURRENT_USER")
    try:
        with manage.relay("--all-schemas") as relay:
            enqueue(manage, "t1", "t2")
            eventually(lambda: delivered(manage, "t2"))
            eventually(lambda: "Publisher 'default' is unavailable: schema 't1': ProgrammingError" in relay.output)
            manage.sql(f"GRANT UPDATE ON t1.{TABLE} TO CURRENT_USER")
            eventually(lambda: delivered(manage, "t1"))
    finally:
        manage.sql(f"GRANT UPDATE ON t1.{TABLE} TO CURRENT_USER")


def test_a_table_that_is_locked_does_not_hold_up_the_others(manage: Project):
    with manage.relay("--all-schemas"), manage.database.session() as cursor:
        cursor.execute(f"BEGIN; LOCK TABLE t1.{TABLE}")
        enqueue(manage, "t2")
        eventually(lambda: delivered(manage, "t2"))
        cursor.execute("ROLLBACK")
        enqueue(manage, "t1")
        eventually(lambda: delivered(manage, "t1"))


def test_a_pause_holds_the_messages_of_its_schema_only(manage: Project):
    pause = "from django_outbox.stores.pausing import pause; from django_tenants.utils import schema_context\n"
    manage.do(f"{pause}with schema_context('t1'): pause('default')")
    enqueue(manage, "t1", "t2")
    with manage.relay("--all-schemas") as relay:
        eventually(lambda: "Schema 't1': Publisher 'default' is paused." in relay.output)
        eventually(lambda: delivered(manage, "t2"))
        assert not delivered(manage, "t1")
        manage.do(f"{pause.replace('pause;', 'resume;')}with schema_context('t1'): resume('default')")
        eventually(lambda: delivered(manage, "t1"))


def test_a_publisher_that_is_unavailable_does_not_hold_up_others(manage: Project):
    (manage.folder / "sick_project.py").write_text(
        "from tenants_project import *\n"
        "OUTBOX['PUBLISHERS']['sick'] = {'BACKEND': 'django_outbox.brokers.http.HTTPPublisher',"
        " 'OPTIONS': {'url': 'http://127.0.0.1:9/'}}\n"
    )
    enqueue(manage, "t1", "t2")
    for schema in ("t1", "t2"):
        manage.sql(f"UPDATE {schema}.{TABLE} SET publisher = 'sick'")
    with manage.relay("--all-schemas", "--settings", "sick_project") as relay:
        eventually(lambda: "Publisher 'sick' is unavailable" in relay.output)
        enqueue(manage, "t1", "t2")
        eventually(lambda: manage.pending("t1") == 1 and manage.pending("t2") == 1)
    assert relay.output.count("Publisher 'sick' is unavailable: ") == 1


def test_a_tenant_with_many_messages_does_not_delay_the_others_more_and_more(manage: Project):
    enqueue(manage, "t1", type="order.slow", count=80)
    flags = ("--batch-size", "1", "--workers", "1", "--poll-interval", "0.05")
    with manage.relay("--all-schemas", *flags) as relay:
        # There are several looks in each turn of t1.
        eventually(lambda: relay.output.count("slow order") >= 15)
        enqueue(manage, "t2", type="order.seen")
        before = relay.output.count("slow order")
        eventually(lambda: "Client t2 in t2" in relay.output)
        assert relay.output.count("slow order") - before <= 6


RELAY = """
import threading
import time
from dataclasses import replace
from unittest import mock
from django_outbox.relay import Relay
from django_outbox.relay.limits import LIMITS

def run_until(condition, **limits):
    def stop():
        deadline = time.monotonic() + 60
        try:
            while not condition() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            relay.stop()

    with Relay(limits=replace(LIMITS, **limits)) as relay:
        threading.Thread(target=stop).start()
        relay.run_for_tenants()
"""

CRASHING = f"""{RELAY}
from django.test import override_settings
from django_outbox.exceptions import OutboxError
from django_outbox.relay.delivery import Delivery
from django_outbox.relay.rate_limits import RateLimiter

released, run, release = [], Delivery.run, RateLimiter.release

def crash(delivery, limit, **options):
    if run(delivery, limit, **options).tally.processed:
        raise ERROR("no idea")
    return run(delivery, limit, **options)

def note(limiter):
    released.append(limiter.reserved)
    release(limiter)

limited = {{"BACKEND": "django_outbox.brokers.console.ConsolePublisher", "RATE_LIMIT": 50}}
with (
    override_settings(OUTBOX={{"PUBLISHERS": {{"default": limited}}}}),
    mock.patch.object(Delivery, "run", crash),
    mock.patch.object(RateLimiter, "release", note),
):
    run_until(lambda: any(released))
print("released", max(released))
"""


@pytest.mark.parametrize("error", ["OutboxError", "RuntimeError"])
def test_a_worker_that_crashes_gives_back_what_it_has_reserved(manage: Project, error: str):
    enqueue(manage, "t1")
    assert manage.do(CRASHING.replace("ERROR", error)).endswith("released 9\n")


CALLS = f"""{RELAY}
from django_outbox.models import Heartbeat
from django_tenants.utils import schema_context

found = set()

def look():
    for schema in ("t1", "t2"):
        with schema_context(schema):
            # The heartbeat of another test may have other publishers.
            states = [each.publishers.get("handlers", {{}}) for each in Heartbeat.objects.all()]
            found.update((schema, bool(state.get("call"))) for state in states)
    return ("t1", True) in found and ("t2", False) in found

run_until(look, report_pace=0.005)
print(sorted(found))
"""


def test_a_running_handler_is_reported_in_its_schema_only(manage: Project):
    enqueue(manage, "t1", type="order.slow", count=20)
    found = manage.do(CALLS)
    assert "('t1', True)" in found
    assert "('t2', True)" not in found


OUTAGE = f"""{RELAY}
import logging
from django.db import OperationalError, connections

refused, lines, handler = [], [], logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("django_outbox").addHandler(handler)
wrapper = type(connections["default"])
connect = wrapper.get_new_connection

def refuse(connection, parameters):
    if threading.current_thread().name == "outbox-reports":
        refused.append(parameters)
        raise OperationalError("too many connections")
    return connect(connection, parameters)

with mock.patch.object(wrapper, "get_new_connection", refuse):
    run_until(lambda: len(refused) > 3, report_pace=0.005)
print("refused", len(refused) > 3, sum("report could not be written" in line for line in lines))
"""


def test_an_outage_is_not_logged_again_for_the_report_of_each_schema(manage: Project):
    assert manage.do(OUTAGE).endswith("refused True 0\n")


PURGE = f"""{RELAY}
from django_outbox import OutboxMessage
from django_tenants.utils import schema_context

def left(schema):
    with schema_context(schema):
        return OutboxMessage.objects.count()

run_until(lambda: not left("t1") and not left("t2"), purge_interval=0.1)
"""


def test_old_messages_of_each_schema_are_purged(manage: Project):
    enqueue(manage, "t1", "t2")
    for schema in ("t1", "t2"):
        manage.sql(f"UPDATE {schema}.{TABLE} SET available_at = NULL, processed_at = now() - interval '1 year'")
    manage.do(PURGE)
    for schema in ("t1", "t2"):
        assert manage.sql(f"SELECT count(*) FROM {schema}.{TABLE}") == [(0,)]


def test_a_publisher_with_a_stream_has_a_relay_in_each_schema(manage: Project):
    streamed = manage.folder / "streamed_project.py"
    streamed.write_text("from tenants_project import *\nOUTBOX['PUBLISHERS']['default']['SOURCE'] = 'snapshot'\n")
    done = manage("run_outbox", "--all-schemas", "--settings", "streamed_project")
    assert done.returncode == 1
    assert "The publisher 'default' has a SOURCE that one relay cannot serve" in done.stderr
    assert "manage.py tenant_command run_outbox --schema=NAME" in done.stderr
    script = ENQUEUE.format(schemas=("t1", "t2"), type="streamed", count=1)
    assert not manage("shell", "-c", script, "--settings", "streamed_project").returncode
    pending = f"SELECT count(*) FROM t1.{TABLE} WHERE type = 'streamed' AND available_at IS NULL"
    assert manage.sql(pending) == [(1,)]
    done = manage("tenant_command", "run_outbox", "--drain", "--schema=t2", "--settings", "streamed_project")
    assert done.returncode == 0, done.stderr
    assert "'schema': 't2'" in done.stdout or '"schema": "t2"' in done.stdout
    assert "'t1'" not in done.stdout.replace('"', "'")
