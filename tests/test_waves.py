"""Publishing in waves: what may be in flight together, and what an answer means for the messages behind it."""

import datetime
import uuid
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.messages import ACCEPTED, HELD, Message, Outcome, Verdict, not_now, rejected, unanswered
from django_outbox.waves import publish_in_waves

REJECTED, LATER, AWAY = rejected("never"), not_now("later"), unanswered("away")


def messages(keys: Sequence[str]) -> list[Message]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return [
        Message(id, str(uuid.uuid4()), "order.created", "", key, b"1", {}, now, 0)
        for id, key in enumerate(keys, start=1)
    ]


class Broker:
    """Answers each message as told, by id, and keeps the waves."""

    def __init__(self, answers: dict[int, Outcome]) -> None:
        self.answers = answers
        self.waves: list[list[int]] = []

    def __call__(self, batch: Sequence[Message]) -> list[Outcome]:
        self.waves.append([message.id for message in batch])
        return [self.answers.get(message.id, ACCEPTED) for message in batch]


def run(
    keys: Sequence[str],
    answers: dict[int, Outcome] | None = None,
    *,
    holds: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[list[list[int]], list[Outcome]]:
    broker = Broker(answers or {})
    outcomes = publish_in_waves(broker, messages(keys), failed_holds_key=holds, stopped=stopped)
    return broker.waves, outcomes


def test_messages_without_a_key_go_together_with_the_first_of_each_key():
    assert run(["", "a", "", "b"]) == ([[1, 2, 3, 4]], [ACCEPTED] * 4)


def test_the_next_of_a_key_goes_when_the_one_before_is_accepted():
    assert run(["a", "a", "b", "a", ""]) == ([[1, 3, 5], [2], [4]], [ACCEPTED] * 5)


def test_one_that_is_to_be_tried_again_holds_back_its_key_alone():
    waves, outcomes = run(["a", "b", "a", "b"], {1: LATER})
    assert waves == [[1, 2], [4]]
    assert outcomes == [LATER, ACCEPTED, HELD, ACCEPTED]


@pytest.mark.parametrize(("holds", "last"), [(False, ACCEPTED), (True, HELD)])
def test_one_that_is_rejected_lets_its_key_pass_or_holds_it_back(holds: bool, last: Outcome):
    _, outcomes = run(["a", "a"], {1: REJECTED}, holds=holds)
    assert outcomes == [REJECTED, last]


def test_after_an_outage_no_further_wave_goes_out():
    waves, outcomes = run(["a", "b", "a", "b"], {1: AWAY})
    assert waves == [[1, 2]]
    assert outcomes == [AWAY, ACCEPTED, HELD, HELD]


def test_a_relay_that_stops_finishes_the_wave_that_is_at_the_broker():
    waves, outcomes = run(["a", "a"], stopped=lambda: True)
    assert waves == [[1]]
    assert outcomes == [ACCEPTED, HELD]


outcomes = st.sampled_from([ACCEPTED, ACCEPTED, ACCEPTED, REJECTED, LATER, AWAY])


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), outcomes), max_size=30), st.booleans())
def test_whatever_the_broker_answers_the_order_of_each_key_is_kept(batch: list[tuple[str, Outcome]], holds: bool):
    """No two of a key in one wave; none published after one that is not done with; each answer is passed on."""
    answers = {id: outcome for id, (_, outcome) in enumerate(batch, start=1)}
    keys = {id: key for id, (key, _) in enumerate(batch, start=1)}
    waves, found = run([key for key, _ in batch], answers, holds=holds)
    published = [id for wave in waves for id in wave]
    for wave in waves:
        keyed = [keys[id] for id in wave if keys[id]]
        assert len(keyed) == len(set(keyed))
    assert [outcome is HELD for outcome in found] == [id not in published for id in keys]
    assert all(found[id - 1] is answers[id] for id in published)
    passing = {Verdict.ACCEPTED} if holds else {Verdict.ACCEPTED, Verdict.REJECTED}
    for key in ("a", "b", "c"):
        mine = [id for id in published if keys[id] == key]
        assert mine == sorted(mine)
        assert mine == [id for id in keys if keys[id] == key][: len(mine)]
        assert all(answers[id].verdict in passing for id in mine[:-1])
    assert all(id in published for id, key in keys.items() if not key)
