"""Publishing in waves: messages that may be in flight together, and outcomes that block later messages."""

import datetime
import uuid
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind, rejected, retry_later, unanswered
from django_outbox.relay.sending.broker import publish_in_waves

REJECTED, DEFERRED, UNANSWERED = rejected("never"), retry_later("later"), unanswered("unavailable")


def messages(keys: Sequence[str]) -> list[Message]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return [
        Message(id, str(uuid.uuid4()), "order.created", "", key, b"1", {}, now, 0)
        for id, key in enumerate(keys, start=1)
    ]


class Broker:
    """Returns a given outcome for each message, by id, and keeps the waves."""

    def __init__(self, outcomes: dict[int, Outcome]) -> None:
        self.outcomes = outcomes
        self.waves: list[list[int]] = []

    def __call__(self, batch: Sequence[Message]) -> list[Outcome]:
        self.waves.append([message.id for message in batch])
        return [self.outcomes.get(message.id, ACCEPTED) for message in batch]


def run(
    keys: Sequence[str],
    outcomes: dict[int, Outcome] | None = None,
    *,
    failed_blocks_key: bool = False,
    may_not_begin: Callable[[], bool] = lambda: False,
) -> tuple[list[list[int]], list[Outcome]]:
    broker = Broker(outcomes or {})
    found = publish_in_waves(broker, messages(keys), failed_blocks_key=failed_blocks_key, may_not_begin=may_not_begin)
    return broker.waves, found


def test_the_next_message_of_a_key_is_sent_when_the_previous_one_is_accepted():
    assert run(["a", "a", "b", "a", ""]) == ([[1, 3, 5], [2], [4]], [ACCEPTED] * 5)


def test_a_stopping_relay_finishes_the_wave_in_flight():
    waves, outcomes = run(["a", "a"], may_not_begin=lambda: True)
    assert waves == [[1]]
    assert outcomes == [ACCEPTED, BLOCKED]


any_outcome = st.sampled_from([ACCEPTED, ACCEPTED, ACCEPTED, REJECTED, DEFERRED, UNANSWERED])


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), any_outcome), max_size=30), st.booleans())
def test_the_order_of_each_key_is_kept_with_any_outcomes(batch: list[tuple[str, Outcome]], failed_blocks_key: bool):
    """One message per key and wave, none after a message that blocks its key, and every outcome is passed on."""
    given_outcomes = {id: outcome for id, (_, outcome) in enumerate(batch, start=1)}
    keys = {id: key for id, (key, _) in enumerate(batch, start=1)}
    waves, found = run([key for key, _ in batch], given_outcomes, failed_blocks_key=failed_blocks_key)
    published = [id for wave in waves for id in wave]
    for wave in waves:
        keyed = [keys[id] for id in wave if keys[id]]
        assert len(keyed) == len(set(keyed))
    assert [outcome is BLOCKED for outcome in found] == [id not in published for id in keys]
    assert all(found[id - 1] is given_outcomes[id] for id in published)
    passing = {OutcomeKind.ACCEPTED} if failed_blocks_key else {OutcomeKind.ACCEPTED, OutcomeKind.REJECTED}
    for key in ("a", "b", "c"):
        own = [id for id in published if keys[id] == key]
        assert own == sorted(own)
        assert own == [id for id in keys if keys[id] == key][: len(own)]
        assert all(given_outcomes[id].kind in passing for id in own[:-1])
    assert all(id in published for id, key in keys.items() if not key)
