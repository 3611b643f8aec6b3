"""The receivers in the guides to webhooks and CloudEvents, with requests and messages of the publishers."""

from typing import Any
from unittest.mock import Mock

import pika
import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from django_outbox.brokers.rabbitmq.encoding import as_event
from django_outbox.messages import ACCEPTED
from tests.docs.blocks import example
from tests.support.claimed import make_message
from tests.support.http.receiver import Call, MakePublisher, Receiver

pytest_plugins = ["tests.support.http.fixtures"]

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"


def to_request(call: Call, **headers: str) -> HttpRequest:
    sent = {**call.headers, **headers}
    return RequestFactory().post(call.path, call.body, content_type=sent.pop("content-type"), headers=sent)


@pytest.mark.django_db
def test_the_receiver_of_webhooks_handles_each_id_once(
    receiver: Receiver, make_webhooks: MakePublisher, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BILLING_WEBHOOK_SECRET", SECRET)
    invoices: list[Any] = []
    receive = example("webhooks", "receive_order", create_invoice=invoices.append)
    assert make_webhooks(receiver.url(), secrets=SECRET).publish([make_message(payload=b'{"id": 7}')]) == [ACCEPTED]
    (call,) = receiver.calls
    assert [receive(to_request(call)).status_code for _ in range(2)] == [204, 204]
    assert invoices == [{"id": 7}]
    assert receive(to_request(call, **{"webhook-signature": "v1,AAAA"})).status_code == 401
    assert receive(RequestFactory().post("/")).status_code == 401
    assert receive(RequestFactory().get("/")).status_code == 405


def test_the_receiver_of_events_reads_them(
    receiver: Receiver, make_webhooks: MakePublisher, capsys: pytest.CaptureFixture[str]
):
    receive = example("cloudevents", "receive_event")
    message = make_message(payload=b'{"id": 7}')
    assert make_webhooks(receiver.url(), format="cloudevents", source="/shop").publish([message]) == [ACCEPTED]
    (call,) = receiver.calls
    assert receive(to_request(call)).status_code == 204
    assert capsys.readouterr().out == f"order.created {message.message_id} {{'id': 7}}\n"


def test_the_consumer_of_events_reads_them(capsys: pytest.CaptureFixture[str]):
    on_message = example("cloudevents", "on_message")
    message = as_event(make_message(payload=b'{"id": 7}'), "/shop")
    properties = pika.BasicProperties(headers=dict(message.headers), content_type="application/json")
    on_message(Mock(), Mock(), properties, message.payload)
    assert capsys.readouterr().out == f"order.created {message.message_id} {{'id': 7}}\n"
