"""A user's tests with pytest-django, on pytest-xdist, with `--reuse-db`."""

import re

from tests.stacks.support import Project

PACKAGES = (
    "Django==6.1.3",
    "psycopg[binary]==3.3.9",
    "pytest==9.2.0",
    "pytest-django==4.14.0",
    "pytest-xdist==3.8.0",
)
POSTGRESQL = True

TESTS = """
import pytest
from django.test import RequestFactory, TestCase

from django_outbox.models import OutboxMessage
from django_outbox.testing import OutboxTestMixin
from mysite.models import Order
from mysite.views import place_order


@pytest.mark.parametrize("number", range(20))
def test_an_order_is_announced(outbox, number):
    place_order(RequestFactory().get("/"), str(number))
    outbox.assert_enqueued("order.created", number=str(number))
    outbox.drain()
    assert [message.type for message in outbox.published] == ["order.created"]
    assert OutboxMessage.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", range(4))
def test_committed_orders(outbox, number):
    place_order(RequestFactory().get("/"), str(number))
    outbox.assert_enqueued("order.created", number=str(number))
    assert Order.objects.count() == OutboxMessage.objects.count() == 1


class Orders(OutboxTestMixin, TestCase):
    def test_an_order_is_announced(self):
        place_order(RequestFactory().get("/"), "7")
        self.outbox.assert_enqueued("order.created", number="7")
"""


def test_each_process_has_its_database_in_both_runs(project: Project):
    project.write("test_orders.py", TESTS)
    for options in (["--create-db"], ["--reuse-db"], ["--reuse-db", "-p", "no:randomly"]):
        printed = project.run("pytest", "-q", "-n", "2", *options, "-p", "no:cacheprovider", "test_orders.py")
        assert re.search(r"^25 passed", printed, re.MULTILINE), printed
    project.run("pytest", "-q", "--create-db", "test_orders.py")
