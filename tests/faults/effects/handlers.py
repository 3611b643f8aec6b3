"""Handlers that leave effects, and that fail or die on the way."""

import os
import random
import time
from typing import Any

import django
from django.db import transaction

from django_outbox.handlers import handler
from django_outbox.messages import Message
from tests.faults.effects.canvas import STEPS
from tests.faults.effects.deaths import die
from tests.faults.effects.models import Effect, Work

HANDLERS = {"one": ["one"], "two": ["left", "right"], "lost": ["fallback"], "second": ["second"]}
HANDLERS |= {"long": ["long"], "canvas": STEPS}
"""The names of the effects, by the type of what was written."""

AT_LEAST_ONCE = {"long", *STEPS}
"""The names of the effects that a relay or a worker may repeat when another one died."""

if django.VERSION >= (6, 0):
    # A Django task.
    HANDLERS["task"] = ["task"]

LONG = 4.0
"""Seconds of long work: more than the claim timeout of its publisher."""

FAILURES = 0.1
"""Share of the calls that raise after the effect was left."""


def leave(number: int, name: str, using: str = "default") -> None:
    """Leave an effect, and perhaps raise or die before or after it."""
    die("before the effect")
    Effect.objects.using(using).create(number=number, handler=name)
    transaction.on_commit(lambda: die("after the commit, in a hook"), using=using)
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


@handler("long", name="long")
def long(number: int, message: Message) -> None:
    """Work longer than a claim lasts, in no transaction."""
    Work.objects.create(number=number, process=os.getpid())
    time.sleep(LONG)
    Work.objects.create(number=number, process=os.getpid())
    Effect.objects.create(number=number, handler="long")


@handler("second", name="second")
def second(number: int, message: Message) -> None:
    """Leave an effect in the second database, which has the message."""
    leave(number, "second", using="second")


@handler("lost", name="lost")
def lost(number: int, message: Message) -> None:
    Effect.objects.create(number=number, handler="lost")
    raise LookupError("never")


@lost.fallback
def fallback(number: int, message: Message, error: Any) -> None:
    die("before the effect")
    Effect.objects.create(number=number, handler="fallback")
    die("after the effect")
