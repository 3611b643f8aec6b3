"""`RecordsEvents`: events of a model are committed with its instance, or not at all."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, connections, models, transaction
from django.db.models.signals import post_delete, post_save, pre_save
from django.test.utils import CaptureQueriesContext

from django_outbox import InvalidMessage, OutboxMessage
from django_outbox.db.transactions import waits_for_commit
from django_outbox.events import event, recording
from django_outbox.exceptions import InvalidEvent
from tests.conftest import ALIASES
from tests.support.event_models import Purchase

committed = pytest.mark.django_db(databases=ALIASES, transaction=True)


@dataclasses.dataclass
class PurchaseChanged:
    id: int
    number: str = ""


@pytest.fixture(autouse=True)
def _registered(fresh_registry: object) -> None:
    event("purchase.changed", key="purchase-{id}")(PurchaseChanged)


def changed(each: Purchase) -> PurchaseChanged:
    return PurchaseChanged(each.pk, each.number)


def payloads(using: str) -> list[Any]:
    return [message.payload for message in OutboxMessage.objects.using(using).order_by("pk")]


class Undo(Exception):
    pass


@committed
class TestSaving:
    def test_save_opens_a_transaction_and_enqueues_in_the_order_of_recording(self, purchase: Purchase, using: str):
        purchase.record(changed)
        purchase.record(PurchaseChanged(0, "second"))
        purchase.save(using=using)
        assert payloads(using) == [{"id": purchase.pk, "number": "A-1"}, {"id": 0, "number": "second"}]
        assert Purchase.objects.using(using).count() == 1

    def test_the_messages_go_to_the_database_of_the_instance(self, purchase: Purchase, using: str):
        purchase.save(using=using)
        purchase.record(changed)
        # The router chooses the database that the instance came from.
        purchase.save()
        assert {alias: len(payloads(alias)) for alias in ALIASES} == {alias: int(alias == using) for alias in ALIASES}

    def test_events_are_kept_when_save_fails(self, purchase: Purchase, using: str):
        Purchase(number="A-1").save(using=using)
        purchase.record(changed)
        with pytest.raises(IntegrityError):
            purchase.save(using=using)
        assert payloads(using) == []
        purchase.number = "A-2"
        purchase.save(using=using)
        assert payloads(using) == [{"id": purchase.pk, "number": "A-2"}]

    def test_a_receiver_that_records_and_saves_again_enqueues_each_event_once(self, purchase: Purchase, using: str):
        def receive(instance: Purchase, created: bool, **_: Any) -> None:
            if created:
                instance.record(changed)
                instance.save(using=using)

        post_save.connect(receive, sender=Purchase)
        try:
            purchase.save(using=using)
        finally:
            post_save.disconnect(receive, sender=Purchase)
        assert len(payloads(using)) == 1

    def test_within_a_transaction_an_instance_without_events_costs_no_statement(self, purchase: Purchase, using: str):
        purchase.save(using=using)
        with transaction.atomic(using=using):
            with CaptureQueriesContext(connections[using]) as queries:
                purchase.save(using=using)
            with CaptureQueriesContext(connections[using]) as plain:
                models.Model.save(purchase, using=using)
        assert len(queries) == len(plain)


def put_wrong(instance: Purchase, **_: Any) -> None:
    instance.record(PurchaseChanged(instance.pk, number=3))  # type: ignore[arg-type]


INVALID = rf"^purchase\.changed \({__name__}\.PurchaseChanged\): number: must be of type str"


@committed
class TestErrorsThatAreCaught:
    """Within a transaction, the caller may catch an error of `save()` and go on, as with any other model."""

    @pytest.mark.parametrize("event", [None, changed], ids=["nothing recorded", "an event"])
    def test_an_error_before_the_first_query_leaves_the_transaction_usable(
        self, purchase: Purchase, using: str, event: Any
    ):
        def refuse(**_: Any) -> None:
            raise ValidationError("wrong")

        if event is not None:
            purchase.record(event)
        pre_save.connect(refuse, sender=Purchase)
        try:
            with transaction.atomic(using=using):
                with pytest.raises(ValidationError):
                    purchase.save(using=using)
                pre_save.disconnect(refuse, sender=Purchase)
                Purchase(number="A-2").save(using=using)
        finally:
            pre_save.disconnect(refuse, sender=Purchase)
        assert [each.number for each in Purchase.objects.using(using)] == ["A-2"]
        assert payloads(using) == []

    @pytest.mark.parametrize(
        ("event", "error"),
        [
            (PurchaseChanged(7, number=3), INVALID),  # type: ignore[arg-type]
            (PurchaseChanged(7, number="\0"), r'^PurchaseChanged\.payload\["number"\]: contains a NUL'),
            (lambda each: PurchaseChanged(each.pk, number=3), INVALID),  # type: ignore[arg-type]
        ],
        ids=["an invalid event", "a payload that is refused", "a function"],
    )
    def test_a_refused_event_undoes_the_save_and_leaves_the_transaction_usable(
        self, purchase: Purchase, using: str, event: Any, error: str
    ):
        purchase.record(PurchaseChanged(1))
        purchase.record(event)
        with transaction.atomic(using=using):
            with pytest.raises((InvalidEvent, InvalidMessage), match=error):
                purchase.save(using=using)
            Purchase(number="A-2").save(using=using)
        assert [each.number for each in Purchase.objects.using(using)] == ["A-2"]
        assert payloads(using) == []

    @pytest.mark.parametrize("signal", [post_save, post_delete], ids=["save", "delete"])
    def test_a_change_does_not_commit_without_the_event_that_a_receiver_has_recorded(
        self, purchase: Purchase, using: str, signal: Any
    ):
        purchase.save(using=using)
        purchase.number = "A-2"
        signal.connect(put_wrong, sender=Purchase)
        try:
            with transaction.atomic(using=using), pytest.raises(InvalidEvent):
                purchase.save(using=using) if signal is post_save else purchase.delete()
        finally:
            signal.disconnect(put_wrong, sender=Purchase)
        assert [each.number for each in Purchase.objects.using(using)] == ["A-1"]


@committed
class TestCopies:
    @pytest.mark.parametrize(
        "duplicate",
        [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
        ids=["copy", "deepcopy", "pickle"],
    )
    def test_a_copy_has_no_events(
        self,
        purchase: Purchase,
        using: str,
        duplicate: Callable[[Purchase], Purchase],
        monkeypatch: pytest.MonkeyPatch,
    ):
        """The recorded function could not be pickled."""
        monkeypatch.setattr("django.db.models.base.apps.get_model", lambda *_: Purchase)
        purchase.record(lambda each: PurchaseChanged(each.pk, each.number))
        twin = duplicate(purchase)
        twin.number, twin.pk = "A-2", None
        twin.save(using=using, force_insert=True)
        assert payloads(using) == []
        purchase.save(using=using)
        assert payloads(using) == [{"id": purchase.pk, "number": "A-1"}]


@committed
class TestRetries:
    """A loop around `atomic()` that repeats the work with the same instance announces it once."""

    def test_a_rollback_of_the_transaction_gives_the_events_back(self, purchase: Purchase, using: str):
        purchase.record(changed)
        purchase.record(PurchaseChanged(0, "second"))
        for attempt in range(3):
            try:
                with transaction.atomic(using=using):
                    purchase.save(using=using)
                    if attempt < 2:
                        raise Undo
            except Undo:
                continue
        assert payloads(using) == [{"id": purchase.pk, "number": "A-1"}, {"id": 0, "number": "second"}]
        purchase.save(using=using)
        assert len(payloads(using)) == 2

    def test_a_savepoint_gives_back_only_the_events_that_it_undid(self, purchase: Purchase, using: str):
        with transaction.atomic(using=using):
            for number in (1, 2):
                purchase.record(PurchaseChanged(number))
                purchase.save(using=using)
            with pytest.raises(Undo), transaction.atomic(using=using):
                for number in (3, 4):
                    purchase.record(PurchaseChanged(number))
                    purchase.save(using=using)
                raise Undo
            purchase.save(using=using)
        assert [each["id"] for each in payloads(using)] == [1, 2, 3, 4]

    def test_many_saves_in_a_transaction_search_its_hooks_once_each(
        self, purchase: Purchase, using: str, monkeypatch: pytest.MonkeyPatch
    ):
        searched = mock.Mock(wraps=waits_for_commit)
        monkeypatch.setattr(recording, "waits_for_commit", searched)
        with transaction.atomic(using=using):
            for number in range(20):
                purchase.record(PurchaseChanged(number))
                purchase.save(using=using)
        # Each save looks before and after the row is written.
        assert searched.call_count <= 40

    def test_a_function_is_called_again_for_the_instance_as_it_is_saved_then(self, purchase: Purchase, using: str):
        purchase.record(changed)
        with pytest.raises(Undo), transaction.atomic(using=using):
            purchase.save(using=using)
            raise Undo
        purchase.number, purchase.pk = "A-2", None
        purchase.save(using=using, force_insert=True)
        assert payloads(using) == [{"id": purchase.pk, "number": "A-2"}]

    def test_an_event_that_was_committed_before_the_connection_was_lost_is_announced_once(
        self, purchase: Purchase, using: str, monkeypatch: pytest.MonkeyPatch
    ):
        """The caller cannot know whether that COMMIT worked, so the message has the same ID the next time."""
        connection: Any = connections[using]
        commit = connection._commit

        def fail() -> None:
            monkeypatch.undo()
            commit()
            raise DatabaseError("gone")

        purchase.record(changed)
        monkeypatch.setattr(connection, "_commit", fail)
        with pytest.raises(DatabaseError, match="gone"):
            purchase.save(using=using)
        purchase.save(using=using)
        assert len(payloads(using)) == 1

    def test_a_deletion_is_repeated_with_its_events(self, purchase: Purchase, using: str):
        purchase.save(using=using)
        id = purchase.pk
        purchase.record(changed)
        with pytest.raises(Undo), transaction.atomic(using=using):
            purchase.delete()
            raise Undo
        purchase.pk = id
        purchase.delete()
        assert payloads(using) == [{"id": id, "number": "A-1"}]

    def test_a_hook_may_save_the_instance_again(self, purchase: Purchase, using: str):
        purchase.record(changed)
        with transaction.atomic(using=using):
            transaction.on_commit(lambda: purchase.save(using=using), using=using)
            purchase.save(using=using)
        assert len(payloads(using)) == 1


class TestRefusals:
    @pytest.mark.parametrize("value", ["purchase.changed", None, {}])
    def test_what_is_no_event_cannot_be_recorded(self, value: Any):
        with pytest.raises(InvalidMessage, match="event: must be an event, or a function that returns one"):
            Purchase(number="A-1").record(value)

    def test_the_class_of_an_event_cannot_be_recorded(self):
        with pytest.raises(InvalidMessage, match=r"Record PurchaseChanged\(\.\.\.\) instead"):
            Purchase(number="A-1").record(PurchaseChanged)  # type: ignore[arg-type]

    @committed
    def test_a_function_that_returns_no_event_is_refused_and_kept(self, purchase: Purchase, using: str):
        purchase.record(lambda each: None)  # type: ignore[arg-type, return-value]
        for _ in range(2):
            with pytest.raises(InvalidMessage, match=r"the recorded function .* must return an event, not NoneType"):
                purchase.save(using=using)
        assert Purchase.objects.using(using).count() == 0
