"""A position and messages that were copied from another server, whatever the numbers of its transactions were."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import StreamPosition
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED
from tests.support.messages import put
from tests.support.publishers import Script

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

SEQUENCE = "django_outbox_outboxmessage_id_seq"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "streams.md"


def run(sql: str) -> Any:
    with connections[PG].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


@override_settings(OUTBOX=STREAMED)
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    offset=st.one_of(st.integers(-40, 40), st.sampled_from([-(10**9), 10**6, 10**12])),
    delivered=st.integers(0, 6),
    waiting=st.integers(0, 4),
    late=st.booleans(),
    written=st.lists(st.booleans(), max_size=5),
    reuses_ids=st.booleans(),
    has_same_identifier=st.booleans(),
)
def test_nothing_is_lost_and_nothing_is_sent_again(
    scripted: Script,
    *,
    offset: int,
    delivered: int,
    waiting: int,
    late: bool,
    written: list[bool],
    reuses_ids: bool,
    has_same_identifier: bool,
):
    """The sequence is set right after the new server's messages have been written, and before the relay starts.

    Args:
        offset: how far the old server's numbers are ahead.
        late: whether the first message was not committed when the position passed the others.
        written: the new server's messages; true if in a savepoint.
    """
    OutboxMessage.objects.using(PG).all().delete()
    StreamPosition.objects.using(PG).all().delete()
    free = run(f"SELECT nextval('{SEQUENCE}')")
    first = max(run("SELECT pg_current_xact_id()::text::bigint") + offset, 3)
    run(f"SELECT setval('{SEQUENCE}', {free + 100})")
    ids = put(delivered + waiting, PG)
    # Copies are written by other transactions than those that are named in them.
    for number, id in enumerate(ids):
        run(f"UPDATE django_outbox_outboxmessage SET xid = '{first + number}' WHERE id = {id}")
    undelivered = ids[delivered:]
    running = ""
    if late and delivered:
        undelivered.append(ids[0])
        running = str(first)
    end = first + delivered
    StreamPosition.objects.using(PG).create(
        publisher="default",
        server=run("SELECT system_identifier::text FROM pg_control_system()") if has_same_identifier else "elsewhere",
        passed=f"{running or end}:{end}:{running}",
        last_id=ids[delivered - 1] if delivered else 0,
    )
    # No transaction has this number.
    run("UPDATE django_outbox_streamposition SET xid = '2'")
    highest = run(f"SELECT last_value FROM {SEQUENCE}")
    if reuses_ids:
        run(f"SELECT setval('{SEQUENCE}', {free})")
    for in_savepoint in written:
        with transaction.atomic(using=PG), transaction.atomic(using=PG, savepoint=in_savepoint):
            undelivered.append(enqueue("t", 1, using=PG).pk)
    run(f"SELECT setval('{SEQUENCE}', {highest + 10})")
    waits = OutboxMessage.objects.using(PG).waiting_in_streams()
    assert {*waits.values_list("id", flat=True)} == {*undelivered}
    scripted.reset()
    # A position that is ahead of the server would deliver the same messages again and again.
    with Relay(using=PG, max_messages=50) as relay:
        relay.drain()
    assert sorted(scripted.published()) == sorted(undelivered)


@override_settings(OUTBOX=STREAMED)
def test_the_code_of_the_guide_delivers_messages_that_were_enqueued_before_the_position_arrived(scripted: Script):
    free = run(f"SELECT nextval('{SEQUENCE}')")
    run(f"SELECT setval('{SEQUENCE}', {free + 100})")
    copied = put(3, PG)
    ahead = run("SELECT pg_current_xact_id()::text::bigint") + 1000
    run(f"UPDATE django_outbox_outboxmessage SET xid = '{ahead - 1}', occurred_at = now() - interval '1 day'")
    began = timezone.now()
    run(f"SELECT setval('{SEQUENCE}', {free})")
    put(2, PG)
    StreamPosition.objects.using(PG).create(
        publisher="default", server="elsewhere", passed=f"{ahead}:{ahead}:", last_id=copied[-1]
    )
    run("UPDATE django_outbox_streamposition SET xid = '2'")
    run(f"SELECT setval('{SEQUENCE}', {copied[-1]})")
    with Relay(using=PG) as relay:
        relay.drain()
        assert not scripted.published()
        relay.drain()
        blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
        (code,) = (block for block in blocks if "deliver_again" in block)
        code = code.replace("OutboxMessage.objects", f"OutboxMessage.objects.using({PG!r})")
        code = re.sub(
            r"^began = .*", f"began = datetime.fromisoformat({began.isoformat()!r})", code, flags=re.MULTILINE
        )
        exec(compile(code, str(GUIDE), "exec"), {})
        relay.drain()
    assert scripted.published() == [free + 1, free + 2]
