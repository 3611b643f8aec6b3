"""A relay's demands on its caller: no open transaction, a migrated database, few enough workers."""

import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.exceptions import NotMigrated, OutboxError, TransactionForbidden
from django_outbox.models import RateLimit
from django_outbox.relay.relay import MAX_WORKERS, Relay
from tests.conftest import ALIASES
from tests.support.databases import without_table
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script

pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("scripted")]

OUTBOX = {"PUBLISHERS": dict.fromkeys(("default", "b", "c", "d"), SCRIPTED)}
METHODS = ["run", "drain", "deliver_once"]
TABLE = OutboxMessage._meta.db_table


class TestTransaction:
    @pytest.mark.parametrize("method", METHODS)
    def test_inside_an_open_transaction_a_relay_refuses_to_work(self, using: str, method: str, scripted: Script):
        with Relay(using=using) as relay, transaction.atomic(using=using):
            enqueue("t", 1, using=using)
            with pytest.raises(TransactionForbidden) as info:
                getattr(relay, method)()
        assert f"Relay.{method}() was called inside an open transaction on the database {using!r}" in str(info.value)
        assert "transaction.on_commit()" in str(info.value)
        assert isinstance(info.value, OutboxError)
        assert scripted.batches == []

    @pytest.mark.parametrize("method", METHODS)
    def test_the_error_names_autocommit_if_that_is_off(self, using: str, method: str):
        transaction.set_autocommit(False, using=using)
        try:
            with Relay(using=using) as relay, pytest.raises(TransactionForbidden, match="Autocommit is off"):
                getattr(relay, method)()
        finally:
            transaction.set_autocommit(True, using=using)

    def test_a_relay_may_work_in_an_on_commit_hook(self, using: str):
        with Relay(using=using) as relay:
            with transaction.atomic(using=using):
                enqueue("t", 1, using=using)
                transaction.on_commit(relay.drain, using=using)
            assert relay.tally.processed == 1

    @pytest.mark.django_db(databases=ALIASES, transaction=False)
    @pytest.mark.parametrize("workers", [1, 3])
    def test_the_transaction_of_a_test_does_not_count_and_is_seen(self, using: str, workers: int):
        for method in ("drain", "deliver_once"):
            put(using=using)
            with Relay(using=using, workers=workers) as relay:
                assert getattr(relay, method)().processed == 1


class NoOutbox:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_outbox" else None


class TestMigrations:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_missing_table_ends_a_relay_with_the_command_to_run(self, using: str, method: str):
        with without_table(using, OutboxMessage), Relay(using=using) as relay, pytest.raises(NotMigrated) as info:
            getattr(relay, method)()
        assert str(info.value) == (
            f"The database {using!r} lacks the table '{TABLE}'. Run \"manage.py migrate --database={using}\"."
        )

    def test_enqueue_names_a_router_that_keeps_the_table_out(self, using: str, settings: Any):
        settings.DATABASE_ROUTERS = [f"{__name__}.NoOutbox"]
        denied = pytest.raises(NotMigrated, match=r"does not allow the model django_outbox\.OutboxMessage there")
        with without_table(using, OutboxMessage), denied:
            put(using=using)

    def test_a_missing_column_ends_a_relay_with_the_command_to_run(self, using: str):
        put(using=using)
        missing = pytest.raises(NotMigrated, match="lacks the column 'error_class' of the table")
        with connections[using].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {TABLE} RENAME COLUMN error_class TO other")
            try:
                with Relay(using=using, max_messages=1) as relay, missing:
                    relay.run()
            finally:
                cursor.execute(f"ALTER TABLE {TABLE} RENAME COLUMN other TO error_class")

    def test_a_missing_table_of_rate_limits_is_not_an_outage(self, using: str, settings: Any):
        table = RateLimit._meta.db_table
        settings.OUTBOX = {"PUBLISHERS": {"default": {**SCRIPTED, "RATE_LIMIT": 1000}}}
        put(using=using)
        missing = pytest.raises(NotMigrated, match=f"lacks the table '{table}'")
        with without_table(using, RateLimit), Relay(using=using) as relay, missing:
            relay.run()

    def test_the_command_fails_with_the_same_remedy(self, using: str, caplog: pytest.LogCaptureFixture):
        remedy = pytest.raises(CommandError, match=f'Run "manage.py migrate --database={using}"')
        with without_table(using, OutboxMessage), remedy as info:
            call_command("run_outbox", "--database", using)
        assert info.value.returncode == 1
        assert caplog.messages == [], "nothing else is tried before"


@pytest.mark.parametrize("workers", [0, -1, MAX_WORKERS + 1, 1000])
def test_the_number_of_workers_is_bounded_and_the_error_explains_why(workers: int):
    with pytest.raises(ValueError, match=f"workers is {workers}; it must be from 1 to 32: each worker .* connection"):
        Relay(workers=workers)


class TestClosing:
    def test_publishers_are_closed_side_by_side(self, scripted: Script):
        all_are_closing = threading.Barrier(4, timeout=60)
        scripted.on_close = lambda alias: all_are_closing.wait()
        with Relay():
            pass
        assert not all_are_closing.broken

    def test_a_publisher_that_hangs_is_not_waited_for(self, scripted: Script, caplog: pytest.LogCaptureFixture):
        end = threading.Event()
        scripted.on_close = lambda alias: end.wait(60)
        try:
            with Relay(stop_timeout=0.1):
                pass
            assert not end.is_set()
        finally:
            end.set()
        assert "Not every publisher could be closed in time" in caplog.text

    def test_a_publisher_that_raises_keeps_no_other_from_being_closed(
        self, scripted: Script, caplog: pytest.LogCaptureFixture
    ):
        closed: list[str] = []

        def close(alias: str) -> None:
            closed.append(alias)
            raise KeyError("a bug")

        scripted.on_close = close
        with Relay():
            pass
        assert sorted(closed) == ["b", "c", "d", "default"]
        assert "A publisher could not be closed: KeyError" in caplog.text
