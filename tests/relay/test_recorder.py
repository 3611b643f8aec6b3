"""The times of a batch: publishing is measured without the waits for messages that follow in the same claim."""

import time
from collections.abc import Iterator

import pytest

from django_outbox.messages import ACCEPTED
from django_outbox.relay.recorder import FailureLog, Recorder
from django_outbox.signals import phase_finished
from django_outbox.stores import Settlement
from django_outbox.tracing import PublishedBatch, Tracer, tracers
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
    tracers.append(tracer)
    yield tracer
    tracers.remove(tracer)


def test_a_wait_for_further_messages_is_no_time_of_publishing(batches: Batches):
    messages = [make_message(id=id) for id in range(3)]
    began = time.perf_counter()
    recorder = Recorder(ScriptedPublisher("default"), "default", FailureLog())
    recorder.claimed(1)
    waits = []
    for published in (1, 3):
        with recorder.waiting(published):
            wait_began = time.time_ns()
            time.sleep(WAIT)
            waits.append((wait_began, time.time_ns()))
    with received(phase_finished) as phases:
        recorder.published(messages, [ACCEPTED] * 3)
    whole = time.perf_counter() - began
    recorder.settled(3, messages, Settlement(processed=[0, 1, 2]))
    [publish] = phases
    assert publish["seconds"] <= whole - 2 * WAIT
    assert [len(batch.messages) for batch in batches.recorded] == [1, 2]
    first, second = batches.recorded
    assert first.ended_at <= waits[0][0]
    assert waits[0][1] <= second.began_at <= second.ended_at <= waits[1][0]
