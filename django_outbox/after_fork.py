"""Objects that start over in a forked process, because their threads, locks and connections belong to the parent."""

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_functions: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()


def after_fork(subject: T, start_over: Callable[[T], object]) -> None:
    """Call a function with an object in each process forked from this one, for as long as the object exists.

    Args:
        subject: the object.
        start_over: makes it forget what belongs to the parent, without ending it: a function, not the object's own
            method, which would keep the object alive.
    """
    _functions[subject] = start_over


def _start_over() -> None:
    for subject, start_over in [*_functions.items()]:
        start_over(subject)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)
