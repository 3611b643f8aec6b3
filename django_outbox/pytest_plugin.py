"""A plugin for pytest: the fixture `outbox`. It is loaded where the package is installed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_outbox.testing import Outbox


@pytest.fixture
def outbox(db: None) -> "Iterator[Outbox]":
    """The messages that this test enqueues: a `django_outbox.testing.Outbox`, with publishers in memory.

    Handlers and events that the test defines are forgotten at its end.
    """
    # pytest loads plugins before Django's apps.
    from django_outbox.testing.outbox import isolated_outbox  # noqa: PLC0415

    with isolated_outbox() as outbox:
        yield outbox
