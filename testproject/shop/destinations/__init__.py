"""Destinations of the demo's messages: the console, or RabbitMQ if AMQP_URL is set.

At first a destination accepts orders only: messages of other types are unroutable.
"""

import abc
import os
import sys
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

from django.conf import settings

from django_outbox.management.progress import ProgressLine
from django_outbox.relay import Relay

ORDERS = "order.*"
REPORTS = "report.*"


class Destination(abc.ABC):
    """A place where messages arrive.

    Attributes:
        name: the place, for people.
        repair_text: the effect of `repair`, for people: "bind the queue to ...".
    """

    name: str
    repair_text: str

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make it ready for orders, and for nothing else."""

    def open_output(self) -> IO[str]:
        """Open the standard output of a relay that delivers to this destination."""
        return Path(os.devnull).open("w", encoding="utf-8")

    def drain(self) -> None:
        """Deliver all messages that are due, with a live line on a terminal."""
        with self.open_output() as output, redirect_stdout(output), Relay() as relay, ProgressLine(relay, sys.stderr):
            relay.drain()

    @abc.abstractmethod
    def repair(self) -> None:
        """Make it accept reports, too."""

    @abc.abstractmethod
    def read_arrivals(self) -> list[tuple[uuid.UUID, Any]]:
        """Return the id and the payload of each arrival so far, duplicates included."""

    def close(self) -> None:
        """Release its resources."""


def make_destination() -> Destination:
    """Return the destination that the settings publish to."""
    if settings.AMQP_URL:
        from shop.destinations.rabbitmq import RabbitMQDestination  # noqa: PLC0415 - needs pika

        return RabbitMQDestination()
    from shop.destinations.console import ConsoleDestination  # noqa: PLC0415

    return ConsoleDestination()
