"""The times of a batch: publishing is measured without the waits for messages that follow in the same claim."""

import time
from collections.abc import Iterator

import pytest

from django_outbox.messages import ACCEPTED
from django_outbox.relay.recorder import FailureLog, Recorder
from django_outbox.signals import phase_finished
from django_outbox.stores import Settlement
from django_outbox.tracing import PublishedBatch, Tracer, add_tracer, remove_tracer
from tests.support.claimed import make_message
from tests.support.publishers import ScriptedPublisher
from tests.support.signals import received

WAIT = 0.2


class Batches(Tracer):
    def __init__(self) -> None:
        self.recorded: list[PublishedBatch] = []

    def published(self, batch: PublishedBatch) -> None:
        self.recorded.append(batch)


@pytest.fixture
def batches() -> Iterator[Batches]:
    tracer = Batches()
    add_tracer(tracer)
    yield tracer
    remove_tracer(tracer)


def test_a_wait_for_further_messages_is_no_time_of_publishing(batches: Batches):
    messages = [make_message(id=id) for id in range(3)]
    recorder = Recorder(ScriptedPublisher("default"), "default", FailureLog())
    recorder.claimed(1)
    for published in (1, 3):
        with recorder.waiting(published):
            time.sleep(WAIT)
    with received(phase_finished) as phases:
        recorder.published(messages, [ACCEPTED] * 3)
    recorder.settled(3, messages, Settlement(processed=[0, 1, 2]))
    assert [each["seconds"] < WAIT for each in phases] == [True]
    assert [len(batch.messages) for batch in batches.recorded] == [1, 2]
    first, second = batches.recorded
    assert second.began_at - first.ended_at >= 1e9 * WAIT
    assert second.ended_at - second.began_at < 1e9 * WAIT
