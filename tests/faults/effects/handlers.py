"""Handlers that leave effects, and that fail or die on the way."""

import random
from typing import Any

from django.db import transaction

from django_outbox.handlers import handler
from django_outbox.messages import Message
from tests.faults.effects.deaths import die
from tests.faults.effects.models import Effect

HANDLERS = {"one": ["one"], "two": ["left", "right"], "lost": ["fallback"]}
"""The names of the effects, by the type of what was written."""

FAILURES = 0.1
"""Share of the calls that raise after the effect was left."""


def leave(number: int, name: str) -> None:
    """Leave an effect, and perhaps raise or die before or after it."""
    die("before the effect")
    Effect.objects.create(number=number, handler=name)
    transaction.on_commit(lambda: die("after the commit, in a hook"))
    die("after the effect")
    if random.random() < FAILURES:
        raise ValueError("by chance")


@handler("one", name="one")
def one(number: int, message: Message) -> None:
    leave(number, "one")


@handler("two", name="left")
def left(number: int, message: Message) -> None:
    leave(number, "left")


@handler("two", name="right")
async def right(number: int, message: Message) -> None:
    die("before the effect")
    await Effect.objects.acreate(number=number, handler="right")
    die("after the effect")


@handler("lost", name="lost")
def lost(number: int, message: Message) -> None:
    Effect.objects.create(number=number, handler="lost")
    raise LookupError("never")


@lost.fallback
def fallback(number: int, message: Message, error: Any) -> None:
    die("before the effect")
    Effect.objects.create(number=number, handler="fallback")
    die("after the effect")
