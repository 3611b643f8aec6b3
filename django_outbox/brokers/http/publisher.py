"""A publisher for webhooks: an HTTP request for each message."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import PLAIN, validate_format
from django_outbox.brokers.http.call import HTTPCall
from django_outbox.brokers.http.connections import HTTPOptions, Job, Results, ServerConnections
from django_outbox.brokers.http.encoding import RequestEncoder
from django_outbox.brokers.http.responses import Failure, Response, Statuses
from django_outbox.brokers.http.urls import Origin, Urls
from django_outbox.brokers.options import read_ssl, require_flag, require_number, require_seconds
from django_outbox.brokers.publisher import Publisher
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.messages import Message, Outcome
from django_outbox.threads import after_fork

MAX_CONCURRENCY = 200


class HTTPPublisher(Publisher):
    """Sends each message in an HTTP POST request, signed as specified by Standard Webhooks.

    A message is accepted if the response is 2xx, and rejected if it is a redirect or 4xx, except 408, 425 and 429. With
    408, 425 or 5xx it is deferred. 429 and 503 mean that the receiver is busy: its messages are set aside, for as long
    as `Retry-After` says, and no attempts are used up.

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

    # Not keeps_order: the relay publishes the messages of a key one after the other. It alone knows whether a message
    # that is rejected blocks its key, and a response must be awaited before the next message of the key in any case.
    messaging_system: ClassVar[str] = "http"
    broker_name = "HTTP"
    # The claim's transaction stays open until the slowest receiver of the batch has responded.
    batch_size: ClassVar[int | None] = 100

    def __init__(
        self,
        alias: str,
        *,
        url: str | Mapping[str, str] = "",
        secrets: str | Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        concurrency: int = 20,
        http2: bool = False,
        ssl: Mapping[str, str] | None = None,
        allow_private_addresses: bool = False,
        reject: Sequence[int] = (),
        retry: Sequence[int] = (),
        format: str = PLAIN,
        source: str = "",
    ) -> None:
        super().__init__(alias)
        urls = Urls(url)
        require_seconds("timeout", timeout)
        require_seconds("connect_timeout", connect_timeout)
        require_number("concurrency", concurrency, 1, MAX_CONCURRENCY)
        require_flag("http2", http2)
        require_flag("allow_private_addresses", allow_private_addresses)
        validate_format(format, source)
        uses_tls = any(origin.scheme == "https" for origin in urls.origins)
        if ssl is not None and not uses_tls:
            raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with https://.")
        self._encoder = RequestEncoder(urls, headers, secrets, format=format, source=source)
        self._statuses = Statuses(reject, retry)
        self._origins = urls.origins
        self._options = HTTPOptions(
            publisher_alias=alias,
            timeout=timeout,
            connect_timeout=connect_timeout,
            concurrency=concurrency,
            http2=http2,
            allow_private_addresses=allow_private_addresses,
            ssl=read_ssl({} if ssl is None else ssl) if uses_tls else None,
            sign=self._encoder.sign,
            is_busy=self._statuses.is_busy,
        )
        self._servers: dict[Origin, ServerConnections] = {}
        self._suspensions: Suspensions[Origin]
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        # Neither paths nor queries, which may contain secrets.
        return f"HTTP POST to {', '.join(map(str, self._origins))}"

    def prepare(self) -> str:
        servers = list(self._current_servers().values())
        if any(server.is_known and not server.is_suspended for server in servers):
            return ""
        busy = [f"{server.origin}: {reason}" for server in servers if (reason := server.busy)]
        if len(busy) == len(servers):
            return busy[0]
        willing = [server for server in servers if not server.busy]
        problems = self._probe(willing)
        return problems[0] if len(problems) == len(willing) else ""

    def check(self) -> Sequence[str]:
        return self._probe(list(self._current_servers().values()))

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        call = HTTPCall(
            messages,
            self._current_servers(),
            self._suspensions,
            self._encoder,
            self._statuses,
            timeout=self._options.timeout,
        )
        call.publish()
        return call.result()

    def close(self) -> None:
        with self._lock:
            servers = self._servers
            self._servers = {}
        for server in servers.values():
            server.close()

    def _probe(self, servers: Sequence[ServerConnections]) -> list[str]:
        """Send each server a request that does nothing. Return the reasons of the servers that do not respond."""
        results, begin_until = Results(range(len(servers))), time.monotonic() + self._options.timeout
        for index, server in enumerate(servers):
            server.submit([Job(results, index, None, begin_until, is_trial=True)])
        return [
            f"{servers[index].origin}: {result.error if isinstance(result, Failure) else 'no response in time'}"
            for index, result in results.wait(self._options.timeout + 1).items()
            if not isinstance(result, Response)
        ]

    def _current_servers(self) -> Mapping[Origin, ServerConnections]:
        with self._lock:
            if not self._servers:
                # The relay itself logs the outage of an only server.
                owner = f"Publisher {self.alias!r}" if len(self._origins) > 1 else ""
                self._suspensions = Suspensions(owner)
                self._servers = {
                    origin: ServerConnections(origin, self._options, self._suspensions) for origin in self._origins
                }
            return self._servers

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._servers = {}
