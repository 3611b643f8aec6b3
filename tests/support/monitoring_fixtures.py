"""Fixtures of the tests that read the pages and metrics of the monitoring."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connections

from django_outbox.monitoring import readings
from django_outbox.monitoring.status import read_status
from tests.support.figures import Unreachable, troubled_status


@pytest.fixture
def fresh_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the figures each time: other tests may have read those of the same database a moment ago."""
    monkeypatch.setattr(readings, "status", read_status)


@pytest.fixture
def troubled(fresh_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the figures those of an outbox in which everything is wrong, without a database."""
    monkeypatch.setattr(readings, "status", troubled_status)


@pytest.fixture
def unreachable() -> Unreachable:
    """A context in which the server of a database refuses connections; for `postgresql` and `mariadb`."""

    @contextmanager
    def move_to_a_closed_port(using: str) -> Iterator[None]:
        connection = connections[using]
        with socket.socket() as unused:
            # Nothing listens on it, and nothing else gets it while it is bound.
            unused.bind(("127.0.0.1", 0))
            before = connection.settings_dict["PORT"]
            connection.close()
            connection.settings_dict["PORT"] = unused.getsockname()[1]
            try:
                yield
            finally:
                connection.close()
                connection.settings_dict["PORT"] = before

    return move_to_a_closed_port
