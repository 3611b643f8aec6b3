"""The admin's pages find their rows by an index, and read no more rows than the limit of the list.

The statements are those that the pages run, caught on the way.
"""

import datetime
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_outbox.admin import changelist as admin_list
from django_outbox.admin import listing as admin_listing
from django_outbox.admin import listing as admin_search
from django_outbox.admin import operation_views as admin_views
from django_outbox.admin import overview_groups
from django_outbox.admin.operations import DISCARD, REQUEUE, RETRY_NOW, Operation, Progress, advance
from django_outbox.admin.overview_groups import Group, find_members
from django_outbox.models import OutboxMessage, Status
from django_outbox.monitoring import queues
from django_outbox.utils.text import fingerprint
from tests.conftest import ALIASES, LOCKING
from tests.support.admin.overview_figures import a_bad_night
from tests.support.admin.tools import CHANGELIST, confirm, url
from tests.support.many_messages import is_sorted
from tests.support.many_rows import TABLE
from tests.support.routers import ROUTERS

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.slow, pytest.mark.usefixtures("many_messages")]
pytest_plugins = ["tests.support.many_messages_fixtures"]

BACKEND = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
EARLIER = datetime.datetime(2026, 5, 31, tzinfo=datetime.timezone.utc)
LIMIT = 1000
"""The limit of the list in these tests: small, so that a plan that exceeds it is noticed."""


PAGES: dict[str, dict[str, str]] = {
    "failed": {},
    "failed, of a type": {"type": "order.paid"},
    "failed, of a publisher": {"publisher": "other"},
    "failed, of a type that never occurs": {"type": "no.such"},
    "pending": {"state": "pending"},
    "pending, the last page": {"state": "pending", "p": "10"},
    "pending, of another publisher": {"state": "pending", "publisher": "other"},
    "pending, of a type": {"state": "pending", "type": "order.paid"},
    "processed": {"state": "processed"},
    "processed, of a type": {"state": "processed", "type": "order.paid"},
    "processed, of a publisher": {"state": "processed", "publisher": "nobody"},
    "all": {"state": "all"},
    "all, of a type": {"state": "all", "type": "order.paid"},
    "failed, of a pattern of types": {"type": "order.*"},
    "failed, of a cause": {"fingerprint": fingerprint("no answer")},
    "search for a key": {"q": "order-17"},
    "search": {"q": "17"},
    "search for a message id": {"q": "0198c7a2-5b1e-7d3a-9c40-5f2e8d1b6a73"},
}


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (admin_views, admin_list, admin_search):
        monkeypatch.setattr(module, "LIMIT", LIMIT)
    monkeypatch.setattr(admin_listing, "KEYED_LIMIT", LIMIT)
    # Its bounds are tested with the figures.
    monkeypatch.setattr(admin_list, "status", a_bad_night)


@pytest.fixture(params=LOCKING)
def using(request: pytest.FixtureRequest, settings: Any) -> str:
    """Route the outbox to each server in turn."""
    alias: str = request.param
    settings.DATABASE_ROUTERS = ROUTERS[alias]
    return alias


def examine(using: str, action: Any) -> int:
    """Check the plan of every statement of the action and return their number."""
    with CaptureQueriesContext(connections[using]) as queries:
        action()
    # The name of the table is also a part of the locks of partitions.
    statements = [query["sql"] for query in queries if TABLE in query["sql"] and "pg_try_advisory" not in query["sql"]]
    for sql in statements:
        assert not is_sorted(using, sql, LIMIT) or names_its_rows(sql), sql[:1000]
    return len(statements)


def names_its_rows(sql: str) -> bool:
    """Return whether few rows are read, by their IDs or up to the bounds of indexes, so sorting them is allowed."""
    parts = (" IN (", "WITH keyed", ") head\n", "message_id` = ", 'message_id" = ')
    return any(part in sql for part in parts)


@pytest.mark.parametrize("parameters", [pytest.param(value, id=name) for name, value in PAGES.items()])
def test_a_page_of_the_list_reads_an_index_up_to_its_bound(
    using: str, admin_client: Client, parameters: dict[str, str]
):
    asked = examine(using, lambda: admin_client.get(CHANGELIST, parameters))
    assert asked


@pytest.mark.parametrize("query", ["", "?type=order.paid", "?state=all"])
def test_the_confirmation_for_all_listed_messages_reads_an_index_up_to_its_bound(
    using: str, admin_client: Client, query: str
):
    def confirmation() -> None:
        fields = {"action": "requeue", "_selected_action": 1, "index": 0, "select_across": 1}
        assert admin_client.post(CHANGELIST + query, fields).status_code == 200

    assert examine(using, confirmation)


@pytest.mark.parametrize("operation", ["retry_now", "hold", "cancel"])
def test_the_operations_on_pending_messages_find_them_by_id(using: str, admin_client: Client, operation: str):
    pending = OutboxMessage.objects.using(using).pending()
    ids = [*pending.filter(partition=0).values_list("pk", flat=True)[:3], *pending.values_list("pk", flat=True)[:3]]
    assert examine(using, lambda: confirm(admin_client, url(operation), ids)) == 5


@pytest.mark.parametrize("state", [[], ["--processed"]], ids=["failed", "processed"])
@pytest.mark.parametrize("filters", [["--after", "1w"], ["--before", "1h"], []])
def test_the_command_reads_the_messages_by_the_index_of_their_state(using: str, filters: list[str], state: list[str]):
    def dry_run() -> None:
        call_command("outbox_requeue", *state, "--dry-run", "--limit", str(LIMIT), *filters, stdout=StringIO())

    assert examine(using, dry_run) == 1


@pytest.mark.parametrize("operation", ["requeue", "discard", "deliver_again"])
def test_the_operations_on_settled_messages_find_them_by_id(using: str, admin_client: Client, operation: str):
    state = Status.PROCESSED if operation == "deliver_again" else Status.FAILED
    ids = list(OutboxMessage.objects.using(using).with_status(state).values_list("pk", flat=True)[:3])
    assert examine(using, lambda: confirm(admin_client, url(operation), ids)) == 5


def run_on_group(operation: Operation, group: Group, user: User) -> int:
    """Run an operation on a group in steps, and return how many messages it changed."""
    found = find_members(operation, group)
    left = sorted(target.id for target in found.targets)
    progress = Progress(subject=str(group), left=left, expected=len(left), until=found.at.isoformat())
    while progress.left:
        progress = advance(operation, progress, group.using, user=user, seconds=0.0)
    return progress.done


def test_retrying_a_group_reads_indexes_up_to_its_bound(using: str, admin_user: User, monkeypatch: pytest.MonkeyPatch):
    """Half of the pending messages wait, also those with a key, of which each is the first of its key."""
    monkeypatch.setattr(overview_groups, "MAX_WAITING", LIMIT)
    monkeypatch.setattr(queues, "MAX_ENTRIES", LIMIT)
    pending = OutboxMessage.objects.using(using).pending()
    at = timezone.now() + datetime.timedelta(hours=1)
    middle = pending.order_by("id")[15_000].pk
    pending.filter(id__lt=middle).update(available_at=at, attempts=2, first_error_at=EARLIER, last_error_at=EARLIER)
    group = Group(using, "default", "", "order.paid")
    done: list[int] = []
    assert examine(using, lambda: done.append(run_on_group(RETRY_NOW, group, admin_user))) > 5
    assert done[0] > 100


@pytest.mark.parametrize("operation", [REQUEUE, DISCARD], ids=["requeue", "discard"])
@pytest.mark.parametrize("name", ["", fingerprint("")], ids=["a class", "a fingerprint"])
def test_an_operation_on_a_group_reads_an_index_up_to_its_bound(
    using: str, admin_user: User, monkeypatch: pytest.MonkeyPatch, operation: Operation, name: str
):
    monkeypatch.setattr(overview_groups, "MAX_FAILED", LIMIT)
    group = Group(using, "other", "", "order.paid", name)
    done: list[int] = []
    assert examine(using, lambda: done.append(run_on_group(operation, group, admin_user))) >= 3
    assert done[0]
