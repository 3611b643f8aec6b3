"""Requests that are sent in parallel."""

import threading

import pytest

from django_outbox.brokers.parallel import send_in_parallel
from django_outbox.utils.threads import Threads


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
    with pytest.raises(RuntimeError, match="can't start new thread"):
        send_in_parallel(range(5), send, thread_name="test", concurrency=5, begin_seconds=10, wait_seconds=10)
    held.set()
    assert sent == [0]
