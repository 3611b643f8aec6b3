"""A publisher for development: writes each message to standard output as one line of JSON."""

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.utils.text import escape

__all__ = ["ConsolePublisher"]


@dataclass(kw_only=True, eq=False, repr=False)
class ConsolePublisher(Publisher):
    """Prints each message, and accepts it.

    Args:
        alias: the publisher's name in the settings.
        stream: a text stream to write to. Defaults to standard output.
    """

    keeps_order = True

    stream: IO[str] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def describe(self) -> str:
        return "standard output" if self.stream is None else "a stream"

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        lines = [_format_line(message) for message in messages]
        with self._lock:
            stream = self.stream or sys.stdout
            # A console may lack characters.
            encoding = getattr(stream, "encoding", None) or "utf-8"
            stream.writelines(line.encode(encoding, "backslashreplace").decode(encoding) for line in lines)
            stream.flush()
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
