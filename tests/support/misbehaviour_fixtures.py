"""A publisher that misbehaves, alongside one that behaves, as a pytest plugin."""

from collections.abc import Callable, Iterator

import pytest
from django.test import override_settings

from django_outbox.messages import ACCEPTED
from django_outbox.relay import Relay
from tests.support.misbehaviour import BAD, SOON, Misbehaving, publish_by
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, relays_in_threads


@pytest.fixture
def misbehaving(scripted: Script) -> Iterator[None]:
    """Set up a publisher "default" that behaves and one called "bad" that follows a script."""
    Misbehaving.calls = 0
    publish_by(lambda messages: [ACCEPTED] * len(messages))
    with override_settings(OUTBOX={"PUBLISHERS": {"default": SCRIPTED, "bad": BAD}, "RETRY": SOON}):
        yield


@pytest.fixture
def running() -> Iterator[Callable[..., Relay]]:
    with relays_in_threads(poll_interval=0.05, workers=2, limits=QUICK) as start:
        yield start
