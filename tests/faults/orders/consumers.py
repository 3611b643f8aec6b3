"""The consumer of a run, and two that break the inbox's promise, to prove that a run notices it."""

import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from django_outbox.brokers import Incoming
from django_outbox.brokers.rabbitmq import RabbitMQConsumer

WINDOW = 0.1
"""Seconds between the acknowledgement and the transaction of a consumer that breaks the promise."""


class CountingConsumer(RabbitMQConsumer):
    """Adds the number of messages of each batch to a file, so that messages that came again can be counted.

    Args:
        alias: the consumer's name in the settings.
        journal: path of the file.
        options: the options of `RabbitMQConsumer`.
    """

    def __init__(self, alias: str, *, journal: str, **options: Any) -> None:
        super().__init__(alias, **options)
        self._journal = Path(journal)

    def receive(self, seconds: float) -> list[Incoming]:
        batch = super().receive(seconds)
        if batch:
            with self._journal.open("ab", buffering=0) as file:
                file.write(b"%d\n" % len(batch))
        return batch


class AcknowledgingFirst(CountingConsumer):
    """Acknowledges messages before they are stored: those in hand are lost if the process is killed."""

    def receive(self, seconds: float) -> list[Incoming]:
        batch = super().receive(seconds)
        super().settle(batch, ())
        time.sleep(WINDOW if batch else 0)
        return batch

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        """Do nothing: they are acknowledged already."""


class Forgetful(CountingConsumer):
    """Gives each delivery a new ID, so that the inbox does not recognize messages that come again."""

    def receive(self, seconds: float) -> list[Incoming]:
        return [each._replace(message_id=str(uuid.uuid4())) for each in super().receive(seconds)]

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        time.sleep(WINDOW)
        super().settle(batch, rejected)
