"""Every query of the figures reads an index, and no more rows than its limit, on a table of many messages."""

from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_outbox.models import HELD_BY_PAUSE, OutboxMessage
from django_outbox.monitoring import failures, queues
from django_outbox.monitoring.status import read_status
from tests.conftest import ALIASES, LOCKING
from tests.support.many_messages import is_sorted
from tests.support.many_rows import TABLE

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.slow, pytest.mark.usefixtures("many_messages")]
pytest_plugins = ["tests.support.many_messages_fixtures"]

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
LIMIT = 1000


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.OUTBOX = {"PUBLISHERS": {"default": MEMORY}}
    for name in ("MAX_COUNT", "MAX_ROWS", "MAX_ENTRIES"):
        monkeypatch.setattr(queues, name, LIMIT)
    for name in ("MAX_TALLIED", "MAX_FAILURES"):
        monkeypatch.setattr(failures, name, LIMIT)


@pytest.mark.parametrize("using", LOCKING)
def test_each_query_reads_an_index_up_to_its_limit(using: str):
    undelivered = OutboxMessage.objects.using(using).filter(publisher="default", blocks_key=True, processed_at=None)
    head = undelivered.order_by("partition", "id").values_list("pk", flat=True)[0]
    undelivered.filter(pk=head).update(available_at=HELD_BY_PAUSE, failed_at=None)
    with CaptureQueriesContext(connections[using]) as queries:
        result = read_status(using)
    assert [publisher.alias for publisher in result.publishers] == ["default", "other"]
    assert str(result.publishers[0].due) == "1,000+"
    assert str(result.publishers[0].failed) == "0+"
    assert not result.failures_are_complete
    statements = [query["sql"] for query in queries if TABLE in query["sql"]]
    assert len(statements) > 10
    for sql in statements:
        is_sorted(using, sql, LIMIT)
