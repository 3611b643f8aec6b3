"""A publisher for webhooks: an HTTP request for each message."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from django_outbox.brokers.http.call import HTTPCall
from django_outbox.brokers.http.connection import Server
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork


@dataclass(kw_only=True, eq=False, repr=False)
class HTTPPublisher(HTTPOptions, Publisher):
    """Sends each message in an HTTP POST request, signed as specified by Standard Webhooks.

    A message is accepted if the response is 2xx, and rejected if it is a redirect or 4xx, except 408, 425 and 429. With
    408, 425 or 5xx it is deferred. 429 and 503 mean that the receiver is busy, so its messages are set aside, for as
    long as `Retry-After` states, and no attempts are used up.

    A message without a response is deferred if the server responds to another message of the batch, or to a request
    that does nothing. If it responds to neither, the messages are unanswered.

    Args:
        alias: the publisher's name in the settings.
        url: the destination: an `http://` or `https://` URL.
        secrets: the secret of Standard Webhooks with which requests are signed, `whsec_` and base64; or a list, for
            example the new and the old one while the receiver changes them.
        headers: headers to send with each message.
        timeout: seconds that a request may take in all, of which connecting to one address may take 5. `publish` takes
            at most about twice as long, and three times if the server responds to no message.
        concurrency: maximum number of requests at once of each worker, up to 200.
        ssl: a dict with any of `cafile` (the authority to trust instead of the system's), `certfile` and `keyfile`
            (the client's certificate), all paths of PEM files. The server is always verified.
        allow_private_addresses: whether the server may have a private, loopback, link-local or reserved address.
        format: `"plain"`, or `"cloudevents"` for CloudEvents with their attributes in headers.
        source: the attribute `source` of CloudEvents, a URI reference.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows a secret.
    """

    # Not keeps_order, so the relay publishes the messages of a key one after the other. It alone knows whether a
    # message that is rejected blocks its key, and a response must be awaited before the key's next message in any case.
    messaging_system: ClassVar[str] = "http"
    broker_name = "HTTP"
    # The claim's transaction stays open until the slowest receiver of the batch has responded.
    batch_size: ClassVar[int | None] = 100

    _server: Server = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        # Neither path nor query, which may contain secrets.
        return f"HTTP POST to {self.origin}"

    def prepare(self) -> str:
        if self._server.is_known and not self._server.busy:
            return ""
        return f"{self.origin}: {self._server.busy}" if self._server.busy else self._server.probe()

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return HTTPCall(messages, self, self._server).run()

    def close(self) -> None:
        server = self._server
        self._start_over()
        server.close()

    def _start_over(self) -> None:
        # Without a circle, connections are closed as soon as the publisher is forgotten.
        options: HTTPOptions = weakref.proxy(self)
        self._server = Server(options)
