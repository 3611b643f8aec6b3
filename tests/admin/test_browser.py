"""The admin in a browser: an operator finds failed messages, reads the reason, and requeues them."""

import pytest
from selenium.webdriver.support.wait import WebDriverWait

from django_outbox.models import OutboxMessage, Status
from tests.support.admin.browser import SECONDS, Operator
from tests.support.admin.tools import put, statuses
from tests.support.messages import ago

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

pytest_plugins = ["tests.support.admin.browser_fixtures"]


@pytest.fixture
def messages() -> list[int]:
    """Three failed messages, the newest failure last, and two others."""
    put(Status.PROCESSED)
    put(Status.PENDING, attempts=3, age=-90, error="the broker refused the message (basic.nack)")
    ids = [
        *put(Status.FAILED, age=90, key="order-17", error="unroutable: 312 NO_ROUTE", attempts=1),
        *put(Status.FAILED, age=60, key="order-18", type="order.paid", error="a long story: " + "and then " * 40),
        *put(Status.FAILED, age=30, key="<b>order-19</b>", payload={"id": 19, "items": ["tea", "cake"]}, attempts=10),
    ]
    failed = OutboxMessage.objects.filter(pk__in=ids)
    failed.filter(pk__in=ids[1:]).update(blocks_key=True)
    errors = {"first_error_at": ago(days=1), "last_error_at": ago(hours=1), "dead_lettered_at": ago(hours=1)}
    failed.filter(pk=ids[2]).update(error_class="shop.errors.Timeout", error="the shop is closed", **errors)
    return ids


def test_an_operator_requeues_the_selected_messages(messages: list[int], operator: Operator):
    assert operator.find("#content h1").text == "Failed messages (3)"
    assert operator.column("key") == ["<b>order-19</b>", "order-18", "order-17"]

    operator.find("#action-toggle").click()
    operator.find_all("#result_list .action-select")[1].click()
    operator.find("select[name=action] option[value=requeue]").click()
    operator.follow(operator.find(".actions button"))
    assert operator.find("#content h1").text == "Requeue failed messages"
    assert [row.text for row in operator.find_all(".outbox-preview tbody tr")] == [
        "1 order.created -",
        "1 (1 blocking) order.created shop.errors.Timeout",
    ]
    operator.find("#id_reason").send_keys("the shop is open again")

    operator.follow(operator.find("#content input[type=submit]"))
    assert operator.find(".messagelist .success").text == "2 messages were requeued."
    assert operator.column("key") == ["order-18"]
    assert [statuses()[id] for id in messages] == [Status.PENDING, Status.FAILED, Status.PENDING]


def test_an_operator_edits_a_message_and_copies_its_payload(messages: list[int], operator: Operator):
    operator.follow(operator.find("#result_list .field-type a"))
    copy = operator.find(".field-pretty_payload .outbox-copy")
    assert copy.text == "Copy"
    copy.click()
    # It is shown for two seconds.
    WebDriverWait(operator.browser, SECONDS, poll_frequency=0.05).until(lambda _: copy.text == "Copied")
    operator.follow(operator.find("a.outbox-edit"))
    payload = operator.find("#id_payload")
    payload.clear()
    payload.send_keys("{")
    operator.follow(operator.find("#content .submit-row input[type=submit]"))
    assert "This is not valid JSON" in operator.find(".errorlist").text
    payload = operator.find("#id_payload")
    payload.clear()
    payload.send_keys('{"id": 20}')
    operator.follow(operator.find("#content .submit-row input[type=submit]"))
    assert operator.find(".messagelist .success").text == "The message was edited and requeued."
    assert OutboxMessage.objects.get(pk=messages[2]).payload == {"id": 20}
