"""The guide to security gives each process its own database user: what its GRANTs allow, and what they do not."""

import datetime
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.handlers import handler
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later
from django_outbox.models import KeyLock
from django_outbox.monitoring.status import read_status
from django_outbox.relay import Limits, Relay
from django_outbox.retention.purge import purge
from django_outbox.stores.pausing import pause
from tests.conftest import ALIASES, LOCKING
from tests.docs.blocks import find
from tests.support.databases import another_alias
from tests.support.effects import scratch_handlers
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.relay_threads import QUICK, relays_in_threads
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

As = Callable[[str], AbstractContextManager[None]]


def statements(using: str) -> str:
    on_postgresql, on_mysql, _ = find("security", "sql")
    return on_postgresql if using == "postgresql" else on_mysql


def for_monitoring(using: str) -> str:
    *_, sql = find("security", "sql")
    return sql if using == "postgresql" else sql.replace(" ON ", " ON shop.")


@pytest.fixture(params=LOCKING)
def using(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def become(using: str) -> Iterator[As]:
    """What changes to one of the two users of the guide, who have names that no other run has."""
    run = uuid.uuid4().hex[:8]
    users = {name: f"outbox_{name}_{run}" for name in ("web", "relay")}
    connection = connections[using]
    # What the relay deletes of the inbox is in a list below the statements.
    inbox = "GRANT SELECT, UPDATE, DELETE ON shop.outbox_inbox_handledmessage TO shop_relay;"
    if using == "postgresql":
        inbox = inbox.replace("shop.", "")
    sql = (
        (statements(using) + for_monitoring(using) + inbox)
        .replace("'…'", "'secret'")
        .replace("shop.", f"{connection.settings_dict['NAME']}.")
    )
    for name, user in users.items():
        assert f"shop_{name}" in sql
        sql = sql.replace(f"shop_{name}", user)

    @contextmanager
    def become(name: str) -> Iterator[None]:
        # Connections of all threads are made of this one dictionary.
        before = {key: connection.settings_dict[key] for key in ("USER", "PASSWORD")}
        connection.close()
        connection.settings_dict.update(USER=users[name], PASSWORD="secret")
        try:
            yield
        finally:
            connection.close()
            connection.settings_dict.update(before)

    with connection.cursor() as cursor:
        for statement in filter(None, map(str.strip, sql.split(";"))):
            cursor.execute(statement)
    try:
        yield become
    finally:
        with connection.cursor() as cursor:
            for user in users.values():
                if connection.vendor == "postgresql":
                    # Only a member of a role may take its privileges away, unless it is a superuser.
                    cursor.execute(f"GRANT {user} TO CURRENT_USER")
                    cursor.execute(f"DROP OWNED BY {user}")
                cursor.execute(f"DROP {'ROLE' if connection.vendor == 'postgresql' else 'USER'} {user}")


@pytest.fixture(autouse=True)
def publisher(settings: Any, scripted: Script) -> None:
    path = f"{ScriptedPublisher.__module__}.{ScriptedPublisher.__name__}"
    # None of them is due again while a test runs.
    settings.OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": path}}, "RETRY": {"DELAY": 600}}


def write(using: str) -> None:
    known = uuid.uuid4()
    for type in ("accepted", "rejected", "retried"):
        with transaction.atomic(using=using):
            enqueue(type, 1, using=using)
            enqueue(type, 2, key=f"order-{type}", lock_key=True, using=using)
    with transaction.atomic(using=using):
        enqueue("accepted", 3, message_id=known, using=using)
        enqueue("accepted", 3, message_id=known, using=using)
        enqueue_many([OutboxMessage(type="accepted", payload=4, key="order-4")], lock_key=True, using=using)
        # This is how `enqueue` reads where a relay deleted the first message of a `message_id` a moment ago.
        OutboxMessage.objects.using(using).filter(message_id=known).select_for_update().get()


def answer(message: Message) -> Outcome:
    return {"accepted": ACCEPTED, "rejected": rejected("no"), "retried": retry_later("later")}[message.type]


def write_and_deliver(using: str, become: As) -> None:
    with become("web"):
        write(using)
    with become("relay"):
        with Relay(using=using) as relay:
            tally = relay.drain()
        assert (tally.processed, tally.failed, tally.retried) == (4, 2, 2)
        for state in [], ["--processed"]:
            call_command("outbox_requeue", *state, "--all", "--no-input", "--database", using, verbosity=0)
        with Relay(using=using) as relay:
            tally = relay.drain()
        assert (tally.processed, tally.failed, tally.retried) == (4, 2, 0)
        assert purge(using=using, older_than=datetime.timedelta(0)) == 4


def test_the_users_of_the_guide_may_enqueue_and_deliver(using: str, become: As, scripted: Script):
    scripted.answer = answer
    # Both write the rows of locks where some are missing.
    KeyLock.objects.using(using).all().delete()
    write_and_deliver(using, become)


def test_the_relay_of_the_guide_may_report_and_the_web_process_may_show_the_figures(
    using: str, become: As, caplog: pytest.LogCaptureFixture
):
    with become("web"), transaction.atomic(using=using):
        enqueue("accepted", 1, using=using)
    with become("relay"), Relay(using=using, limits=Limits(report_patience=20)) as relay:
        assert relay.drain().processed == 1
    assert "report could not be written" not in caplog.text
    with become("web"):
        figures = read_status(using)
    assert [relay.processed for relay in figures.relays] == [1]
    assert sum(period.processed for period in figures.last_hour) == 1


def test_where_nothing_is_kept_the_relay_may_delete_what_it_delivered(using: str, become: As, settings: Any):
    settings.OUTBOX = {**settings.OUTBOX, "RETENTION": datetime.timedelta(0)}
    with become("web"), transaction.atomic(using=using):
        enqueue("accepted", 1, using=using)
    with become("relay"), Relay(using=using) as relay:
        assert relay.drain().processed == 1
    assert not OutboxMessage.objects.using(using).exists()


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [("web", lambda messages: messages.delete()), ("relay", lambda messages: messages.create(type="a", payload=1))],
    ids=["web deletes", "relay inserts"],
)
def test_the_users_of_the_guide_may_do_no_more(using: str, become: As, name: str, forbidden: Callable[[Any], Any]):
    with become("web"), transaction.atomic(using=using):
        enqueue("accepted", 1, using=using)
    with become(name), pytest.raises(DatabaseError, match="denied"):
        forbidden(OutboxMessage.objects.using(using))


@pytest.mark.parametrize("using", ["postgresql"])
def test_on_postgresql_a_message_cannot_be_changed_by_the_user_who_enqueues(using: str, become: As):
    with become("web"), pytest.raises(DatabaseError, match="denied"):
        OutboxMessage.objects.using(using).update(payload=2)


def deliver_while_a_type_is_paused(scripted: Script, using: str, become: As) -> int:
    """Deliver a message of a paused type and one of another, and return how many were delivered."""
    with transaction.atomic(using=using):
        enqueue("accepted", 1, using=using)
        enqueue("paused", 1, using=using)
    pause("default", "paused", using=using)
    scripted.answer = lambda message: ACCEPTED
    with become("relay"), Relay(using=using, limits=QUICK) as relay:
        return relay.drain().processed


def revoke(using: str, become: As, privilege: str, table: str) -> None:
    with become("relay"):
        name = connections[using].settings_dict["USER"]
    with connections[using].cursor() as cursor:
        cursor.execute(f"REVOKE {privilege} ON {table} FROM {name}")


def test_the_relay_of_the_guide_may_hold_messages(using: str, become: As, scripted: Script):
    assert deliver_while_a_type_is_paused(scripted, using, become) == 1


def test_a_relay_that_may_not_read_the_pauses_delivers_everything(using: str, become: As, scripted: Script):
    revoke(using, become, "SELECT", "django_outbox_pause")
    assert deliver_while_a_type_is_paused(scripted, using, become) == 2


@pytest.mark.parametrize("using", ["postgresql"])
def test_a_relay_that_may_not_lock_a_pause_delivers_the_messages_of_other_types(
    using: str, become: As, scripted: Script
):
    revoke(using, become, "UPDATE", "django_outbox_pause")
    assert deliver_while_a_type_is_paused(scripted, using, become) == 1


LEASED = {"BACKEND": "django_outbox.handlers.HandlersPublisher", "OPTIONS": {"transaction": False}}

ENTRIES = {
    "django_outbox_ratelimit": {**SCRIPTED, "RATE_LIMIT": 100},
    "django_outbox_keylock": LEASED,
    "django_outbox_streamposition": {**SCRIPTED, "SOURCE": "snapshot"},
}
"""Publishers that need a right on a table that others do not need."""


LACKING = [(using, table) for using in LOCKING for table in ENTRIES if "position" not in table or using == "postgresql"]


def change_rights(owner: str, role: str, change: str, table: str) -> None:
    preposition = "TO" if change.startswith("GRANT") else "FROM"
    with connections[owner].cursor() as cursor:
        cursor.execute(f"{change} ON {table} {preposition} {role}")


@pytest.mark.parametrize(("using", "table"), LACKING)
def test_a_right_that_one_publisher_lacks_stops_no_other(
    using: str, become: As, table: str, *, scripted: Script, settings: Any, caplog: pytest.LogCaptureFixture
):
    settings.OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "limited": ENTRIES[table]}}
    handled: list[int] = []
    with scratch_handlers(), another_alias(using) as owner, become("relay"):
        role = connections[using].settings_dict["USER"]
        if table in statements(using):
            change_rights(owner, role, "REVOKE INSERT, UPDATE", table)

        @handler("t")
        def note(payload: int, message: Message) -> None:
            handled.append(message.id)

        ids = put(2, owner, publisher="limited")
        others = put(2, owner)
        with relays_in_threads(using=using, limits=replace(QUICK, report_pace=0.02)) as start:
            relay = start()
            eventually(lambda: relay.tally.processed == 2)
            eventually(lambda: read_status(owner).verdict.code == "unavailable")
            verdict = read_status(owner).verdict
            assert verdict.values["publisher"] == "limited"
            assert "denied" in str(verdict.values["reason"])
            others += put(2, owner)
            eventually(lambda: relay.tally.processed == 4)
            change_rights(owner, role, "GRANT SELECT, INSERT, UPDATE, DELETE", table)
            eventually(lambda: relay.tally.processed == 6)
    assert Counter([*scripted.published(), *handled]) == dict.fromkeys([*ids, *others], 1)
    assert "Database" not in caplog.text
    assert caplog.text.count("is unavailable") == 1


@pytest.mark.parametrize("table", ["heartbeat", "deliverycount", "pause"])
def test_a_right_that_a_relay_lacks_for_its_own_records_stops_nothing(
    using: str, become: As, table: str, scripted: Script, caplog: pytest.LogCaptureFixture
):
    table = f"django_outbox_{table}"
    with another_alias(using) as owner, become("relay"):
        role = connections[using].settings_dict["USER"]
        pause("default", "paused", using=owner)
        change_rights(owner, role, "REVOKE SELECT, UPDATE", table)
        ids = put(2, owner, type="paused" if "pause" in table else "t")
        with relays_in_threads(using=using, limits=replace(QUICK, report_pace=0.02, pause_interval=0.1)) as start:
            relay = start()
            eventually(lambda: relay.tally.processed == 2)
            eventually(lambda: "denied" in caplog.text)
            change_rights(owner, role, "GRANT SELECT, UPDATE", table)
            if "pause" in table:
                eventually(lambda: relay._state.pauses.paused_types("default"))
            else:
                eventually(lambda: sum(period.processed for period in read_status(owner).last_hour) == 2)
                eventually(lambda: any(report.processed for report in read_status(owner).relays))
    assert scripted.published() == ids
    assert caplog.text.count("denied") == 1
