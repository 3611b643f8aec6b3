"""Destinations of the demo's messages: the console, or the broker of BROKER_URL.

At first a destination accepts orders only: messages of other types are unroutable.
"""

import abc
import os
import sys
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_outbox.management.live import RelayFigures, live_line
from django_outbox.relay import Relay
from shop import conf

ORDERS = "order.*"
REPORTS = "report.*"


class Destination(abc.ABC):
    """A place where messages arrive.

    Attributes:
        name: the place, for people.
        drops_duplicates: whether it keeps one of several messages with the same ID.
        repair_text: the effect of `repair`, for people: "bind the queue to ...".
    """

    name: str
    repair_text: str
    drops_duplicates = False

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make it ready for orders, and for nothing else."""

    def open_output(self) -> IO[str]:
        """Open the standard output of a relay that delivers to this destination."""
        return Path(os.devnull).open("w", encoding="utf-8")

    def drain(self) -> None:
        """Deliver all messages that are due, with a live line on a terminal."""
        with (
            self.open_output() as output,
            redirect_stdout(output),
            Relay() as relay,
            live_line(relay.using, RelayFigures(relay).read, sys.stderr),
        ):
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
    """Return the destination that the settings publish to.

    Raises:
        ImproperlyConfigured: the demo cannot use it.
    """
    if not conf.DESTINATION:
        raise ImproperlyConfigured(
            "The demo cannot use the broker of BROKER_URL. Run the shop with it, or unset BROKER_URL for the demo."
        )
    # A class is imported when it is used, because it needs the broker's driver.
    destination: Destination = import_string(conf.DESTINATION)()
    return destination
