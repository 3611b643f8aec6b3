"""What becomes of each message of a batch is decided by its outcome, without a database."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from django_outbox.messages import ACCEPTED, BLOCKED, Message, Outcome, OutcomeKind, rejected, unanswered
from django_outbox.relay.decisions import Decisions, Policy, decide
from django_outbox.retry import LONGEST_RETRY_AFTER, RetryPolicy
from tests.support.claimed import make_message

RETRY = RetryPolicy(max_attempts=3, jitter=0)

DEFERRED = st.builds(
    Outcome,
    st.just(OutcomeKind.DEFERRED),
    st.text(max_size=5),
    retry_after=st.none() | st.floats(0, allow_nan=False) | st.just(10**400),
    counted=st.booleans(),
)
OUTCOMES = st.sampled_from([ACCEPTED, BLOCKED, rejected("no"), unanswered("away")]) | DEFERRED

BATCHES = st.lists(st.tuples(st.sampled_from(["", "k", "l"]), st.integers(0, 4), OUTCOMES), max_size=12)
"""The key, the earlier attempts and the outcome of each message."""


def policy(*, blocks: bool = False) -> Policy:
    return Policy(lambda message: RETRY, blocks)


def read(batch: list[tuple[str, int, Outcome]]) -> tuple[list[Message], list[Outcome]]:
    messages = [make_message(id=id, key=key, attempts=attempts) for id, (key, attempts, _) in enumerate(batch, 1)]
    return messages, [outcome for _, _, outcome in batch]


@given(BATCHES, st.booleans())
def test_each_message_gets_the_state_of_its_outcome(batch: Any, blocks: bool):
    messages, outcomes = read(batch)
    decisions = decide(messages, outcomes, policy(blocks=blocks))
    settlement = decisions.settlement
    assert decisions.outcomes == outcomes
    assert not settlement.held
    states = dict.fromkeys(settlement.processed, "processed")
    states |= {row.id: "failed" for row in settlement.failed} | {row.id: "retried" for row in settlement.retried}
    assert len(states) == settlement.count
    for message, outcome in zip(messages, outcomes, strict=True):
        is_last = outcome.counted and message.attempts + 1 >= RETRY.max_attempts
        expected = {
            OutcomeKind.ACCEPTED: "processed",
            OutcomeKind.REJECTED: "failed",
            OutcomeKind.DEFERRED: "failed" if is_last else "retried",
        }
        assert states.get(message.id) == expected.get(outcome.kind)


@given(BATCHES, st.booleans())
def test_a_failed_message_keeps_its_reason_and_blocks_its_key_where_that_is_set(batch: Any, blocks: bool):
    messages, outcomes = read(batch)
    decisions = decide(messages, outcomes, policy(blocks=blocks))
    assert [message.id for message, _ in decisions.failed] == [row.id for row in decisions.settlement.failed]
    for (message, outcome), row in zip(decisions.failed, decisions.settlement.failed, strict=True):
        assert (row.error, row.error_class) == (outcome.error, outcome.error_kind)
        assert row.blocks_key is (blocks and bool(message.key))


@given(BATCHES)
def test_a_wait_is_bounded_and_an_uncounted_one_is_as_long_as_the_publisher_asks_for(batch: Any):
    messages, outcomes = read(batch)
    asked = {message.id: outcome for message, outcome in zip(messages, outcomes, strict=True)}
    for row in decide(messages, outcomes, policy()).settlement.retried:
        assert 0 <= row.delay <= LONGEST_RETRY_AFTER
        assert row.counted is asked[row.id].counted
        if not row.counted:
            assert row.delay == min(asked[row.id].retry_after or 0, LONGEST_RETRY_AFTER)


@given(BATCHES)
def test_messages_that_are_decided_one_by_one_get_the_same_states(batch: Any):
    messages, outcomes = read(batch)
    one_by_one = Decisions.none(len(messages))
    for index, (message, outcome) in enumerate(zip(messages, outcomes, strict=True)):
        one_by_one.add(index, decide([message], [outcome], policy()))
    assert one_by_one == decide(messages, outcomes, policy())
