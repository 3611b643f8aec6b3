"""Claims whose transaction stays open until the end, for publishers that write to the same database."""

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from django_outbox import OutboxMessage
from django_outbox.messages import Message
from django_outbox.models import HELD_BY_OPERATOR
from tests.conftest import ALIASES, LOCKING
from tests.support.databases import another_alias
from tests.support.messages import claim, claimed_ids, row, settle, store_of, write

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)


class Interrupted(Exception):
    """Ends a claim."""


def leave(using: str) -> None:
    Group.objects.using(using).create(name="effect")


def has_effect(using: str) -> bool:
    return Group.objects.using(using).exists()


def message(using: str, id: int) -> Any:
    with claim(using) as batch:
        (found,) = [each for each in batch.messages if each.id == id]
    return found


def claim_again(using: str, found: Message) -> Any:
    return store_of(using).claim_one("default", found, max_seconds=60.0)


def test_what_is_written_meanwhile_is_committed_with_the_new_states(using: str):
    (id,) = write(using)
    with claim(using, transactional=True) as batch:
        leave(using)
        settle(using, batch, processed=[id])
    assert has_effect(using)
    assert row(using, id).processed_at is not None


def test_what_is_written_meanwhile_is_lost_with_the_claim(using: str):
    ids = write(using, 2, key="k")
    with pytest.raises(Interrupted), claim(using, transactional=True) as batch:
        leave(using)
        settle(using, batch, processed=ids)
        raise Interrupted
    assert not has_effect(using)
    assert claimed_ids(using) == ids


def test_leaving_a_claim_without_settling_gives_it_back(using: str):
    ids = write(using, 2, key="k")
    with claim(using, transactional=True) as batch:
        leave(using)
        assert [each.id for each in batch.messages] == ids
    assert has_effect(using)
    assert claimed_ids(using) == ids


def test_each_state_can_be_written(using: str):
    done, failed, retried = write(using, 3)
    with claim(using, transactional=True) as batch:
        settle(using, batch, processed=[done], failed=[(failed, "no", "E")], retried=[(retried, "later", 60.0, "E")])
    found = OutboxMessage.objects.using(using).order_by("id").values_list("attempts", "error_class")
    assert [*found] == [(1, ""), (1, "E"), (1, "E")]


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("using", LOCKING)
def test_another_relay_does_not_get_the_messages_meanwhile(using: str, key: str):
    write(using, 2, key=key)
    with claim(using, transactional=True), another_alias(using) as other:
        assert claimed_ids(other) == []


@pytest.mark.parametrize("key", ["", "k"])
def test_a_message_can_be_claimed_again_by_itself(using: str, key: str):
    first, second = write(using, 2, key=key)
    for id in (first, second):
        found = message(using, id)
        with claim_again(using, found) as batch:
            assert batch.messages == [found]
            settle(using, batch, processed=[id])
        assert row(using, id).attempts == 1


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize(
    "change",
    [{"attempts": 1}, {"available_at": None, "failed_at": "2026-01-01 00:00Z"}, {"available_at": HELD_BY_OPERATOR}],
    ids=["retried", "failed", "held"],
)
def test_a_message_that_has_changed_meanwhile_is_not_claimed_again(using: str, change: dict[str, Any], key: str):
    (id,) = write(using, key=key)
    found = message(using, id)
    OutboxMessage.objects.using(using).filter(pk=id).update(**change)
    with claim_again(using, found) as batch:
        assert batch.messages == []


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("using", LOCKING)
def test_a_message_that_another_relay_has_claimed_is_not_claimed_again(using: str, key: str):
    (id,) = write(using, key=key)
    found = message(using, id)
    with claim(using), another_alias(using) as other, claim_again(other, found) as batch:
        assert batch.messages == []


@pytest.mark.parametrize(("transactional", "expected"), [(True, "on"), (False, "off")])
@pytest.mark.parametrize("using", ["postgresql"])
def test_only_a_settlement_alone_need_not_wait_for_the_disk(using: str, transactional: bool, expected: str):
    write(using)
    with (
        another_alias(using, options="-c synchronous_commit=on") as alias,
        claim(alias, transactional=transactional),
        connections[alias].cursor() as cursor,
    ):
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == (expected,)


def test_a_poll_that_finds_nothing_does_not_wait_for_a_writer():
    with another_alias("default", timeout=0.01) as other, transaction.atomic(using="default"):
        leave("default")
        assert claimed_ids(other, transactional=True) == []
