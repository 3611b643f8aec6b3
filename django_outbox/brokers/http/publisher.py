"""A publisher for webhooks: an HTTP request for each message."""

import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from django_outbox.brokers.http.call import HTTPCall
from django_outbox.brokers.http.connection import NO_RESPONSE, Result, ServerConnections
from django_outbox.brokers.http.errors import Response
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.http.urls import Origin
from django_outbox.brokers.parallel import ParallelRequests
from django_outbox.brokers.publisher import Publisher
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork


@dataclass(kw_only=True, eq=False, repr=False)
class HTTPPublisher(HTTPOptions, Publisher):
    """Sends each message in an HTTP POST request, signed as specified by Standard Webhooks.

    A message is accepted if the response is 2xx, and rejected if it is a redirect or 4xx, except 408, 425 and 429. With
    408, 425 or 5xx it is deferred. 429 and 503 mean that the receiver is busy, so its messages are set aside, for as
    long as `Retry-After` states, and no attempts are used up.

    If there is no response, and none to any other message of the batch for the same server, the server is unavailable:
    its messages are set aside while those for other servers are delivered. If all servers in `url` are unavailable, the
    messages are unanswered. A message that alone has no response, while others have, is deferred.

    Args:
        alias: the publisher's name in the settings.
        url: the destination: an `http://` or `https://` URL with any of `{topic}`, `{type}` and `{key}` in its path and
            query; or a dict of patterns of types and URLs. The first pattern that matches is used.
        secrets: the secret of Standard Webhooks with which requests are signed, `whsec_` and base64; or a list, for
            example the new and the old one while the receiver changes them.
        headers: headers to send with each message.
        timeout: seconds that a request may take in all. `publish` takes at most about twice as long.
        connect_timeout: seconds for connecting to one address.
        concurrency: maximum number of requests at once to one server, up to 200.
        http2: whether HTTP/2 may be used over TLS, if the server supports it.
        ssl: a dict with any of `cafile` (the authority to trust instead of the system's), `certfile` and `keyfile`
            (the client's certificate), all paths of PEM files. The server is always verified.
        allow_private_addresses: whether servers may have private, loopback, link-local or reserved addresses.
        reject: a list of statuses from 400 to 599 with which a message is rejected.
        retry: a list of statuses from 400 to 599 with which a message is deferred.
        format: `"plain"`; `"cloudevents"` for CloudEvents in binary mode, or `"cloudevents-structured"`.
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

    _servers: Mapping[Origin, ServerConnections] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        # Neither paths nor queries, which may contain secrets.
        return f"HTTP POST to {', '.join(map(str, self.origins))}"

    def prepare(self) -> str:
        servers = self._servers.values()
        if any(server.is_known and not server.is_suspended for server in servers):
            return ""
        busy = [f"{server.origin}: {reason}" for server in servers if (reason := server.busy)]
        if len(busy) == len(servers):
            return busy[0]
        willing = [server for server in servers if not server.busy]
        problems = self._probe(willing)
        return problems[0] if len(problems) == len(willing) else ""

    def check(self) -> Sequence[str]:
        return self._probe(self._servers.values())

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return HTTPCall(messages, self, self._servers, self._suspensions).run()

    def close(self) -> None:
        servers = self._servers
        self._start_over()
        for server in servers.values():
            server.close()

    def _probe(self, servers: Collection[ServerConnections]) -> list[str]:
        """Send each server a request that does nothing. Return the reasons of the servers that do not respond."""
        results: dict[Origin, Result] = {server.origin: NO_RESPONSE for server in servers}

        def probe(server: ServerConnections) -> None:
            results[server.origin] = server.send(None)

        parallel = ParallelRequests(f"outbox-http-{self.alias}", time.monotonic() + self.timeout)
        for server in servers:
            parallel.send([server], probe, server.slots, concurrency=1)
        parallel.wait(self.timeout + 1)
        return [f"{origin}: {result.error}" for origin, result in results.items() if not isinstance(result, Response)]

    def _start_over(self) -> None:
        # The relay itself logs the outage of an only server.
        suspensions: Suspensions[Origin] = Suspensions(f"Publisher {self.alias!r}" if len(self.origins) > 1 else "")
        self._suspensions = suspensions
        # Without a circle, connections are closed as soon as the publisher is forgotten.
        options: HTTPOptions = weakref.proxy(self)
        self._servers = {origin: ServerConnections(origin, options, suspensions) for origin in self.origins}
