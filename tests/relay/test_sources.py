"""A source claims and settles: a batch is delivered from any of them, without a database."""

import datetime
from collections.abc import Iterator, Set
from contextlib import contextmanager

import pytest

from django_outbox.conf import get_settings
from django_outbox.messages import ACCEPTED, Message, rejected
from django_outbox.relay.batch import Phases
from django_outbox.relay.sending.broker import BrokerDeliverer
from django_outbox.relay.sources import TableSource
from django_outbox.stores import Claim, Settlement
from django_outbox.stores.claiming import NONE
from tests.support.publishers import Script, ScriptedPublisher

pytestmark = pytest.mark.usefixtures("scripted")


class ListSource(TableSource):
    """Hands out messages from a list, and keeps what was settled."""

    using = "default"
    exhausted = complete = True
    is_late = False
    lags = False
    wake_ups = frozenset({"default"})

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.settlements: list[Settlement] = []
        self.open = False

    @contextmanager
    def claim(self, limit: int, refused: Set[int] = NONE, *, passed: str = "") -> Iterator[Claim]:
        self.open = True
        yield Claim(self._messages[:limit])  # type: ignore[arg-type]
        self.open = False

    def settle(self, claim: Claim, settlement: Settlement) -> None:
        assert self.open, "a batch is settled while it is claimed"
        self.settlements.append(settlement)

    def rewind(self) -> None:
        raise AssertionError


def message(id: int) -> Message:
    now = datetime.datetime.now(datetime.timezone.utc)
    return Message(id, str(id), "t", "", "", b"1", {}, now, 0)


def deliverer(source: ListSource) -> BrokerDeliverer:
    return BrokerDeliverer(Phases(ScriptedPublisher("default"), source, get_settings()))


def test_a_batch_is_claimed_published_and_settled_by_any_source(scripted: Script):
    source = ListSource(message(1), message(2), message(3))
    scripted.answer = lambda message: rejected("never") if message.id == 2 else ACCEPTED
    tally = deliverer(source).deliver(10).tally
    assert (tally.claimed, tally.processed, tally.failed) == (3, 2, 1)
    (settlement,) = source.settlements
    assert settlement.processed == [1, 3]
    assert [(failed.id, failed.error) for failed in settlement.failed] == [(2, "never")]


def test_an_empty_claim_is_not_settled():
    source = ListSource()
    assert deliverer(source).deliver(10).tally.claimed == 0
    assert source.settlements == []


def test_no_more_than_the_limit_is_claimed():
    source = ListSource(message(1), message(2))
    assert deliverer(source).deliver(1).tally.processed == 1
