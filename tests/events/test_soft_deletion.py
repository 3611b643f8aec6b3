"""`RecordsEvents` with other base classes, of which `save()` and `delete()` take further arguments."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.db import connection, models
from model_utils.models import SoftDeletableModel
from pytest_django.plugin import DjangoDbBlocker
from safedelete.config import HARD_DELETE, SOFT_DELETE
from safedelete.models import SafeDeleteModel

from django_outbox import OutboxMessage
from django_outbox.events import RecordsEvents, event

pytestmark = pytest.mark.django_db(transaction=True)


class SafeDeleted(RecordsEvents, SafeDeleteModel):
    class Meta:
        app_label = "tests"


class SoftDeleted(RecordsEvents, SoftDeletableModel):  # type: ignore[misc]
    class Meta:
        app_label = "tests"


class WithNotes(models.Model):
    notes: ClassVar[list[Any]] = []

    class Meta:
        abstract = True

    def save(self, note: str, author: str, reason: str, **kwargs: Any) -> None:  # type: ignore[override]
        self.notes.append((note, author, reason))
        super().save(**kwargs)


class Noted(RecordsEvents, WithNotes):  # noqa: DJ008
    class Meta:
        app_label = "tests"


@dataclasses.dataclass
class Removed:
    id: int


MODELS: list[Any] = [SafeDeleted, SoftDeleted, Noted]


@pytest.fixture(autouse=True, scope="module")
def _tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            for model in MODELS:
                editor.create_model(model)
        yield
        with connection.schema_editor() as editor:
            for model in MODELS:
                editor.delete_model(model)


@pytest.fixture(autouse=True)
def _registered(fresh_registry: object) -> None:
    event("order.removed")(Removed)


def make(model: Any) -> Any:
    made = model()
    made.save()
    made.record(lambda instance: Removed(instance.pk))
    return made


def payloads() -> list[Any]:
    return [message.payload for message in OutboxMessage.objects.order_by("pk")]


@pytest.mark.parametrize(
    ("model", "arguments", "options", "is_kept"),
    [
        (SafeDeleted, (), {}, True),
        (SafeDeleted, (HARD_DELETE,), {}, False),
        (SafeDeleted, (), {"force_policy": SOFT_DELETE, "using": "default"}, True),
        (SoftDeleted, ("default",), {}, True),
        (SoftDeleted, ("default",), {"soft": False}, False),
    ],
)
def test_the_other_base_class_gets_its_arguments(model: Any, arguments: Any, options: Any, is_kept: bool):
    made = make(model)
    id = made.pk
    made.delete(*arguments, **options)
    assert model.all_objects.filter(pk=id).exists() == is_kept
    assert payloads() == [{"id": id}]


def test_safedelete_restores_an_instance():
    made = make(SafeDeleted)
    made.delete()
    made.record(Removed(0))
    made.save(keep_deleted=True)
    made.record(Removed(1))
    made.undelete()
    assert SafeDeleted.objects.filter(pk=made.pk).exists()
    assert payloads() == [{"id": made.pk}, {"id": 0}, {"id": 1}]


def test_positional_arguments_of_another_save_are_not_a_database():
    made = Noted()
    made.record(lambda instance: Removed(instance.pk))
    made.save("checked", "Ada", "default order")
    assert Noted.notes == [("checked", "Ada", "default order")]
    assert payloads() == [{"id": made.pk}]
