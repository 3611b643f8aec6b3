"""Waiting for something that another thread, process or server does."""

import time
from collections.abc import Callable
from typing import Any


def eventually(condition: Callable[[], Any], what: str = "the condition came true", *, seconds: float = 60) -> Any:
    """Poll until the condition is true, and return its result; `what` is named if it stays false."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"never within {seconds:g} s: {what}"
        time.sleep(0.02)
    return result


def stays_same(count: Callable[[], int]) -> bool:
    before = count()
    time.sleep(0.5)
    return before == count()
