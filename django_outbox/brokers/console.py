"""A publisher for development: writes each message to standard output as one line of JSON."""

import json
import sys
import threading
from collections.abc import Sequence
from typing import ClassVar

from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.utils.text import escape

__all__ = ["ConsolePublisher"]


class ConsolePublisher(Publisher):
    """Prints each message, and accepts it.

    Args:
        alias: the publisher's name in the settings.
    """

    keeps_order = True

    _lock: ClassVar = threading.Lock()

    def describe(self) -> str:
        return "standard output"

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        lines = [_format_line(message) for message in messages]
        with self._lock:
            # A console may lack characters.
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
            sys.stdout.writelines(line.encode(encoding, "backslashreplace").decode(encoding) for line in lines)
            sys.stdout.flush()
        return [ACCEPTED] * len(messages)


def _format_line(message: Message) -> str:
    envelope = json.dumps(
        {
            "message_id": str(message.message_id),
            "type": message.type,
            "destination": message.destination,
            "key": message.key,
            "occurred_at": message.occurred_at.isoformat(),
            "headers": message.headers,
        },
        ensure_ascii=False,
    )
    # Another program may have written its JSON on several lines.
    payload = message.payload.decode().translate(dict.fromkeys(b"\t\n\r", " "))
    return escape(f'{envelope[:-1]}, "payload": {payload}}}') + "\n"
