"""Relays in their own processes, on the test databases, with handlers that work until they are told to end."""

import signal
from typing import Any

from django.test import override_settings

from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.relay import Relay
from tests.support.effects import leave
from tests.support.relay_threads import QUICK


def relay(pipe: Any, using: str, outbox: dict[str, Any]) -> None:
    """Run a relay; send the payload of each message that its handler gets, and end the handler when told so.

    SIGTERM stops the relay after the message in hand.
    """

    @handler("t")
    def work(payload: Any, message: Message) -> None:
        pipe.send(payload)
        pipe.recv()
        leave(using, payload)

    with override_settings(OUTBOX=outbox), Relay(using=using, poll_interval=0.05, limits=QUICK) as running:
        signal.signal(signal.SIGTERM, lambda *_: running.stop())
        running.run()
    pipe.send("stopped")
