"""Requests that are sent in parallel."""

import threading
import time

import pytest

from django_outbox.brokers.parallel import ParallelRequests, Slots
from django_outbox.utils.threads import Threads


def test_a_call_that_waits_for_a_slot_gets_the_next_one():
    slots, sent, began = Slots(1), list[str](), threading.Event()

    def send(request: str) -> None:
        began.set()
        time.sleep(0.001)
        sent.append(request)

    until = time.monotonic() + 10
    first, second = ParallelRequests("first", until), ParallelRequests("second", until)
    first.send(["first"] * 500, send, slots, concurrency=1)
    began.wait(10)
    second.send(["second"] * 3, send, slots, concurrency=1)
    second.wait(10)
    assert sent.count("second") == 3
    assert len(sent) < 50
    first.wait(10)


def test_a_slot_that_is_not_free_in_time_goes_to_the_next_thread():
    slots = Slots(1)
    assert slots.acquire(timeout=1)
    assert not slots.acquire(timeout=0.01)
    slots.release()
    assert slots.acquire(timeout=0)


def test_no_request_begins_after_a_thread_could_not_be_started(monkeypatch: pytest.MonkeyPatch):
    sent, begun, held = list[int](), threading.Event(), threading.Event()

    def send(request: int) -> None:
        sent.append(request)
        begun.set()
        held.wait(10)

    start, left = Threads.start, [1]

    def start_one(self: Threads, *args: object, **options: object) -> None:
        if not left:
            begun.wait(10)
            raise RuntimeError("can't start new thread")
        left.pop()
        start(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Threads, "start", start_one)
    parallel = ParallelRequests("test", time.monotonic() + 10)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        parallel.send(range(5), send, Slots(5), concurrency=5)
    held.set()
    parallel.wait(10)
    assert sent == [0]
