"""Failed messages are issues of Sentry by its own integration of logging, which is on by default."""

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_outbox.messages import rejected
from django_outbox.relay import Relay
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script

OUTBOX = {"PUBLISHERS": {"default": SCRIPTED}}


class Memory(Transport):
    """Keeps the events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events += [event for item in envelope.items if (event := item.get_event())]


@pytest.fixture
def events() -> Iterator[list[Any]]:
    transport = Memory()
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=transport, include_local_variables=False)
    yield transport.events
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.django_db
def test_a_failed_message_is_an_issue_without_its_payload(scripted: Script, events: list[Any]):
    put(1, payload={"email": "person@example.com"})
    scripted.answer = lambda message: rejected("no such queue", error_class="shop.Unroutable")
    with Relay() as relay:
        relay.deliver_once()
    (event,) = events
    assert (event["level"], event["logger"]) == ("error", "django_outbox")
    assert event["logentry"]["message"].startswith("Publisher %r: %s failed")
    assert "no such queue" in str(event)
    assert "person@example.com" not in str(event)
