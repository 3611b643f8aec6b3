"""Where the demo's messages go, and how they are read back: the console, or RabbitMQ where AMQP_URL is set.

Each destination takes orders and nothing else at first: a message of any other type is unroutable until `repair`.
"""

import abc
import sys
import uuid
from typing import Any

from django.conf import settings

from django_outbox.progress import ProgressLine
from django_outbox.relay import Relay

ORDERS = "order.*"
INVOICES = "invoice.*"


class Destination(abc.ABC):
    """A place where messages arrive.

    Attributes:
        name: where that is, for people.
        repair_text: what `repair` does, for people.
    """

    name: str
    repair_text: str

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make it empty, and ready for orders and for nothing else."""

    def drain(self) -> None:
        """Deliver all that is due, with a live line on a terminal."""
        with Relay() as relay, ProgressLine(relay, sys.stderr):
            relay.drain()

    @abc.abstractmethod
    def repair(self) -> None:
        """Make a way for the invoices."""

    @abc.abstractmethod
    def arrived(self) -> list[tuple[uuid.UUID, Any]]:
        """Return the id and the payload of each message that arrived, as often as it did."""

    def close(self) -> None:
        """Release what it holds."""


def make_destination() -> Destination:
    """Return the destination that the settings publish to."""
    if settings.AMQP_URL:
        from shop.destinations.rabbitmq import RabbitMQDestination  # noqa: PLC0415 - it needs pika, the console does not

        return RabbitMQDestination()
    from shop.destinations.console import ConsoleDestination  # noqa: PLC0415

    return ConsoleDestination()
