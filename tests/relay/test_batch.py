"""One batch: the new states of its messages, and dead-letter copies."""

import pytest

from django_outbox import OutboxMessage
from django_outbox.brokers import memory
from django_outbox.messages import ACCEPTED, rejected, retry_later
from django_outbox.models import Status
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher

pytestmark = pytest.mark.django_db(databases=ALIASES)

MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "dead": MEMORY}, "DEAD_LETTER_PUBLISHER": "dead"}


@pytest.fixture(autouse=True)
def no_dead_letters(scripted: type[ScriptedPublisher]) -> None:
    memory.published.clear()


def deliver(using: str) -> None:
    with Relay(using=using, publishers=["default"]) as relay:
        relay.deliver_once()


def row(using: str, number: int) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get(payload=number)


def test_a_failed_message_goes_to_the_dead_letter_publisher_and_its_row_records_that(using: str, scripted: Script):
    put(3, using)
    scripted.answer = lambda message: (
        rejected("never", error_class="shop.never") if message.payload == b"1" else ACCEPTED
    )
    deliver(using)
    assert [message.payload for message in memory.published] == [b"1"]
    failed = row(using, 1)
    assert (failed.status, failed.error, failed.error_class) == (Status.FAILED, "never", "shop.never")
    assert failed.dead_lettered_at == failed.first_error_at == failed.last_error_at == failed.failed_at
    assert row(using, 0).dead_lettered_at is None


def test_the_first_error_is_kept_and_the_last_one_replaced(using: str, scripted: Script):
    put(1, using)
    scripted.answer = lambda message: retry_later("first", retry_after=0)
    deliver(using)
    first = row(using, 0)
    scripted.answer = lambda message: rejected("last")
    deliver(using)
    last = row(using, 0)
    assert (last.attempts, last.error) == (2, "last")
    assert last.first_error_at == first.first_error_at == first.last_error_at
    assert last.last_error_at is not None
    assert last.last_error_at > first.last_error_at  # type: ignore[operator]
