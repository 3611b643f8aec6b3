"""The publisher for HTTP: requests, responses and signatures."""

import base64
import logging
import socket
import threading
import time
from urllib.parse import unquote

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from django_outbox.messages import ACCEPTED, OutcomeKind, set_aside
from tests.support.claimed import make_message
from tests.support.http.receiver import MakePublisher, Receiver, Reply

pytest_plugins = ["tests.support.http.fixtures"]

NEW, OLD, OTHER = (f"whsec_{base64.b64encode(bytes([letter]) * 32).decode()}" for letter in b"noz")


# Requests


def test_path_and_query_of_the_url_are_sent_as_they_are(receiver: Receiver, make_webhooks: MakePublisher):
    assert make_webhooks(receiver.url("/a/../b%2F?c=%20&d=1")).publish([make_message()]) == [ACCEPTED]
    assert [call.path for call in receiver.calls] == ["/a/../b%2F?c=%20&d=1"]


def test_headers_describe_the_message(receiver: Receiver, make_webhooks: MakePublisher):
    publisher = make_webhooks(receiver.url(), headers={"Authorization": "Bearer s3cret", "tenant": "all"})
    headers = {
        "tenant": "acme",
        "note": " 50 % für Größe ",
        "tracestate": "a=1, b=2",
        "n": {"a": [1]},
        "Host": "evil.example.com",
        "Content-Length": "0",
        "webhook-id": "forged",
        "outbox-type": "forged",
    }
    message = make_message("t", b'{"n": 1}', type="order.größe", key="k 1", headers=headers)
    assert publisher.publish([message]) == [ACCEPTED]
    (call,) = receiver.calls
    sent = call.headers
    assert (call.method, call.body) == ("POST", b'{"n": 1}')
    assert sent["webhook-id"] == sent["outbox-message-id"] == message.message_id
    assert (unquote(sent["outbox-type"]), sent["outbox-key"]) == ("order.größe", "k 1")
    assert sent["outbox-occurred-at"] == "2026-01-02T03:04:05+00:00"
    assert sent["content-type"] == "application/json"
    assert (sent["authorization"], sent["tenant"]) == ("Bearer s3cret", "all")
    assert (unquote(sent["note"]), sent["tracestate"], sent["n"]) == (" 50 % für Größe ", "a=1, b=2", '{"a":[1]}')
    assert sent["host"] == f"127.0.0.1:{receiver.port}"
    assert sent["content-length"] == "8"
    assert "webhook-signature" not in sent


@pytest.mark.parametrize("value", ["a\r\nx-injected: 1", "a\0b", "a\nb", "\t", " ", "%0D%0A"])
def test_a_header_cannot_inject_another_one(receiver: Receiver, make_webhooks: MakePublisher, value: str):
    assert make_webhooks(receiver.url()).publish([make_message(headers={"note": value})]) == [ACCEPTED]
    (call,) = receiver.calls
    assert unquote(call.headers["note"]) == value
    assert "x-injected" not in call.headers


def test_a_long_header_is_encoded_at_once(receiver: Receiver, make_webhooks: MakePublisher):
    # With a search from each space it took 9 seconds.
    value = "é" + " " * 60_000 + "x"
    publisher = make_webhooks(receiver.url())
    began = time.process_time()
    publisher.publish([make_message(headers={"note": value})])
    assert time.process_time() - began < 2


def test_connections_are_used_again(receiver: Receiver, make_webhooks: MakePublisher):
    publisher = make_webhooks(receiver.url(), concurrency=3)
    for _ in range(5):
        assert publisher.publish([make_message() for _ in range(20)]) == [ACCEPTED] * 20
    assert len(receiver.calls) == 100
    assert len({call.connection for call in receiver.calls}) <= 3


def test_a_connection_that_the_server_closed_meanwhile_is_no_error(receiver: Receiver, make_webhooks: MakePublisher):
    receiver.reply = lambda _call: Reply(200, {"connection": "close"})
    publisher = make_webhooks(receiver.url(), concurrency=1)
    for _ in range(5):
        assert publisher.publish([make_message(), make_message()]) == [ACCEPTED] * 2


# Signatures


def test_a_receiver_that_knows_a_secret_verifies_with_the_library_of_standard_webhooks(
    receiver: Receiver, make_webhooks: MakePublisher
):
    payload = '{"total": 1.50, "name": "Größe 🦡"}'.encode()
    assert make_webhooks(receiver.url(), secrets=[NEW, OLD]).publish([make_message(payload=payload)]) == [ACCEPTED]
    (call,) = receiver.calls
    for secret in (NEW, OLD):
        assert Webhook(secret).verify(call.body, call.headers) == {"total": 1.5, "name": "Größe 🦡"}
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(call.body, call.headers)
    for body, headers in (
        (call.body + b" ", call.headers),
        (call.body, {**call.headers, "webhook-id": "another"}),
        (call.body, {**call.headers, "webhook-timestamp": str(int(call.headers["webhook-timestamp"]) + 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(NEW).verify(body, headers)


# Responses

VERDICTS = {
    **dict.fromkeys((200, 201, 202, 204, 299), "accepted"),
    **dict.fromkeys((400, 401, 403, 404, 405, 409, 410, 413, 422, 431, 451, 499), "rejected"),
    **dict.fromkeys((300, 301, 302, 303, 304, 307, 308), "rejected"),
    **dict.fromkeys((408, 425, 500, 501, 502, 504, 507, 599), "deferred"),
}


def test_the_status_decides_the_outcome(receiver: Receiver, make_webhooks: MakePublisher):
    receiver.reply = lambda call: Reply(int(call.headers["outbox-key"]))
    publisher = make_webhooks(receiver.url())
    for status, verdict in VERDICTS.items():
        (outcome,) = publisher.publish([make_message(key=str(status))])
        assert (status, outcome.kind.value) == (status, verdict)
        assert outcome.error_class == ("" if verdict == "accepted" else f"http.{status}")
        assert outcome.counted
        assert str(status) in outcome.error or verdict == "accepted"
    assert publisher.publish([make_message(key="410")])[0].error == "the receiver responded 410"


def test_a_redirect_is_not_followed(receiver: Receiver, make_webhooks: MakePublisher):
    receiver.reply = lambda _call: Reply(307, {"location": f"{receiver.url('/s3cret', host='localhost')}?t=s3cret"})
    (outcome,) = make_webhooks(receiver.url("/from")).publish([make_message()])
    assert outcome.kind is OutcomeKind.REJECTED
    assert "a redirect; set url" in outcome.error
    assert "s3cret" not in outcome.error
    assert [call.path for call in receiver.calls] == ["/from"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("99999999999999999999", 86_400),
        *((unread, None) for unread in ("soon", "-5", "", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT")),
    ],
)
def test_the_receiver_says_when_to_try_again(
    receiver: Receiver, make_webhooks: MakePublisher, header: str, seconds: float | None
):
    receiver.reply = lambda _call: Reply(500, {"Retry-After": header})
    (outcome,) = make_webhooks(receiver.url()).publish([make_message()])
    assert (outcome.kind, outcome.retry_after) == (OutcomeKind.DEFERRED, seconds)


@pytest.mark.parametrize(
    ("reply", "wait"), [(Reply(429, {"Retry-After": "60"}), 60.0), (Reply(503), 1.0)], ids=["429 for a minute", "503"]
)
def test_a_busy_receiver_uses_up_no_attempt_and_gets_no_further_request_meanwhile(
    receiver: Receiver, make_webhooks: MakePublisher, reply: Reply, wait: float
):
    receiver.reply = lambda _call: reply
    publisher = make_webhooks(receiver.url(), concurrency=1)
    outcomes = publisher.publish([make_message() for _ in range(3)])
    error = f"the receiver responded {reply.status}"
    assert outcomes[0] == set_aside(error, wait, error_class=f"http.{reply.status}")
    assert [outcome.kind for outcome in outcomes[1:]] == [OutcomeKind.UNANSWERED] * 2
    assert error in publisher.prepare()
    assert publisher.publish([make_message()])[0].kind is OutcomeKind.UNANSWERED
    assert len(receiver.calls) == 1


def test_a_large_response_is_not_read_to_its_end(receiver: Receiver, make_webhooks: MakePublisher):
    receiver.reply = lambda _call: Reply(200, {"content-length": str(10**12)}, b"x" * 1_000_000)
    publisher = make_webhooks(receiver.url(), timeout=10)
    assert publisher.publish([make_message(), make_message()]) == [ACCEPTED] * 2


def test_nothing_of_request_and_response_is_shown(
    receiver: Receiver, make_webhooks: MakePublisher, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "django_outbox")
    receiver.reply = lambda _call: Reply(400, {"x-token": "s3cret"}, b"s3cret")
    publisher = make_webhooks(receiver.url("/s3cret?token=s3cret"), secrets=NEW, headers={"authorization": "s3cret"})
    (outcome,) = publisher.publish([make_message(payload=b'"s3cret"', headers={"n": "s3cret"})])
    shown = f"{outcome} {publisher.describe()} {publisher.prepare()} {caplog.text}"
    assert "s3cret" not in shown
    assert NEW not in shown
    assert publisher.describe() == f"HTTP POST to http://127.0.0.1:{receiver.port}"


# Responses that are none


def serve_bytes(data: bytes) -> tuple[socket.socket, int]:
    """Serve one connection that gets these bytes whatever it sends, and is closed then."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        listener.close()
        with connection:
            connection.recv(65_536)
            connection.sendall(data)
            # Closing it with unread data would reset the connection.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n", b"", b"HTTP/1.1 200", b"HTTP/1.1 99999 OK\r\n\r\n"])
def test_what_is_not_http_is_an_outage(make_webhooks: MakePublisher, data: bytes):
    listener, port = serve_bytes(data)
    with listener:
        (outcome,) = make_webhooks(f"http://127.0.0.1:{port}/", timeout=5).publish([make_message()])
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert outcome.error == f"http://127.0.0.1:{port}: the connection was lost, or the response is not HTTP"


def test_a_lost_connection_after_the_status_does_not_take_the_response_back(make_webhooks: MakePublisher):
    listener, port = serve_bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
    with listener:
        assert make_webhooks(f"http://127.0.0.1:{port}/").publish([make_message()]) == [ACCEPTED]
