"""The times of a batch: publishing is measured without the waits for messages that follow in the same claim."""

import time

from django_outbox.messages import ACCEPTED
from django_outbox.relay.recorder import FailureLog, Recorder
from django_outbox.signals import phase_finished
from tests.support.claimed import make_message
from tests.support.publishers import ScriptedPublisher
from tests.support.signals import received

WAIT = 0.2


def test_a_wait_for_further_messages_is_no_time_of_publishing():
    began = time.perf_counter()
    recorder = Recorder(ScriptedPublisher("default"), "default", FailureLog())
    recorder.claimed(1)
    for _ in range(2):
        with recorder.waiting():
            time.sleep(WAIT)
    with received(phase_finished) as phases:
        recorder.published([make_message(id=id) for id in range(3)], [ACCEPTED] * 3)
    [publish] = phases
    assert publish["seconds"] <= time.perf_counter() - began - 2 * WAIT
