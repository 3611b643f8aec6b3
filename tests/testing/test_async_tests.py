"""The test helpers in async tests."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.test import TestCase

from django_outbox import enqueue
from django_outbox.handlers import handler
from django_outbox.messages import Message
from django_outbox.pytest_plugin import outbox  # noqa: F401 - a fixture
from django_outbox.testing import Outbox, OutboxTestMixin
from tests.support.effects import HANDLERS

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = pytest.mark.usefixtures("handlers")

OUTBOX = {"PUBLISHERS": {"default": HANDLERS}}


@sync_to_async
def place_order(id: int) -> None:
    with transaction.atomic():
        enqueue("order.created", {"id": id})


async def use(outbox: Outbox) -> None:  # noqa: F811
    seen: list[int] = []

    @handler("order.created")
    def work(payload: Any, message: Message) -> None:
        seen.append(payload["id"])

    await place_order(7)
    message = await sync_to_async(outbox.assert_enqueued)("order.created", id=7)
    assert message.payload == {"id": 7}
    drained = await sync_to_async(outbox.drain)()
    assert (len(drained.processed), seen) == (1, [7])


class AsyncTests(OutboxTestMixin, TestCase):
    async def test_the_helpers_work_in_the_transaction_of_a_test_case(self) -> None:
        await use(self.outbox)


@pytest.mark.anyio
@pytest.mark.django_db(transaction=True)
async def test_the_helpers_work_in_a_loop_of_another_plugin(outbox: Outbox, anyio_backend_name: str):  # noqa: F811
    """The fixture has another connection, so the messages must be committed."""
    await use(outbox)
    await sync_to_async(connections.close_all)()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
