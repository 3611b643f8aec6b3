"""The publisher for HTTP."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from django_outbox.brokers.http import HTTPPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import ProxiedSubject, Received
from tests.support.claimed import make_message
from tests.support.http.receiver import Call, Receiver


class HTTPSubject(ProxiedSubject):
    # Each message is a request of its own, and many are under way at once.
    order = False

    def __init__(self) -> None:
        self._receiver = Receiver().__enter__()
        super().__init__(self._receiver.port)
        self.topic = "orders"

    def make(self, **options: Any) -> HTTPPublisher:
        url = f"http://127.0.0.1:{self.port}/hooks"
        return HTTPPublisher("default", **{"url": url, "allow_private_addresses": True, **options})

    def with_secret(self) -> HTTPPublisher:
        return self.make(
            url=f"http://127.0.0.1:{self.port}/{self.secret}", headers={"authorization": f"Bearer {self.secret}"}
        )

    def received(self) -> Sequence[Received]:
        calls = self._receiver.calls
        self._receiver.clear()
        return [_read(call) for call in calls]

    def poison(self) -> Message:
        return make_message(self.topic, b"2", headers={"a name with spaces": "x"})

    def close(self) -> None:
        super().close()
        self._receiver.__exit__()


def _read(call: Call) -> Received:
    headers = {name: unquote(value) for name, value in call.headers.items()}
    key = headers.get("outbox-key", "")
    return Received(headers["webhook-id"], call.body, headers["outbox-type"], key, headers)
