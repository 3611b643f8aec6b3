"""The publisher for HTTP."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from django_outbox.brokers.http import HTTPPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import BrokerSubject, Received
from tests.support.claimed import make_message
from tests.support.http.receiver import Call, Receiver
from tests.support.proxies import Proxies


class HTTPSubject(BrokerSubject):
    # Each message is a request of its own, and many are under way at once.
    order = False

    def __init__(self) -> None:
        super().__init__()
        self.topic = "orders"
        self._receiver = Receiver().__enter__()
        self._proxies = Proxies().__enter__()
        self._proxy = self._proxies.open(self._receiver.port)

    def make(self, **options: Any) -> HTTPPublisher:
        url = f"http://127.0.0.1:{self._proxy.port}/hooks"
        return HTTPPublisher("default", **{"url": url, "allow_private_addresses": True, **options})

    def with_secret(self) -> HTTPPublisher:
        return self.make(
            url=f"http://127.0.0.1:{self._proxy.port}/{self.secret}", headers={"authorization": f"Bearer {self.secret}"}
        )

    def received(self) -> Sequence[Received]:
        calls = self._receiver.calls
        self._receiver.clear()
        return [_read(call) for call in calls]

    def go_down(self) -> None:
        self._proxy.go_down()

    def come_back(self) -> None:
        self._proxy.come_back()

    def poison(self) -> Message:
        return make_message(self.topic, b"2", headers={"a name with spaces": "x"})

    def close(self) -> None:
        super().close()
        self._proxies.__exit__()
        self._receiver.__exit__()


def _read(call: Call) -> Received:
    headers = {name: unquote(value) for name, value in call.headers.items()}
    key = headers.get("outbox-key", "")
    return Received(headers["webhook-id"], call.body, headers["outbox-type"], key, headers)
