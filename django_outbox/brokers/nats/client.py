"""nats-py's client, extended by what a publisher and a consumer need.

It never does without TLS if the URL begins with tls:// (nats-py sends user and password unprotected if the server does
not ask for TLS), it writes many messages at once, and it passes each message on without an object and a queue for it.

The overridden methods that begin with an underscore are nats-py's own; the tests notice if they change.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

from nats import errors
from nats.aio.client import Client as NatsClient
from nats.protocol import parser

from django_outbox.brokers.nats.errors import SUBSCRIPTION_DENIED, NoAnswer, NotPermitted, denied_subject
from django_outbox.brokers.nats.options import NatsOptions, Server, read_credentials

CLOSE_TIMEOUT = 1.0
"""Seconds that nats-py has to end its tasks."""


_MSG_RE = re.compile(rb"\AMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+)\r\n")
_HMSG_RE = re.compile(rb"\AHMSG +([^ \r\n]+) +(\d+) +(([^ \r\n]+) +)?(\d+) +(\d+)\r\n")


class _Parser(parser.Parser):
    """nats-py's parser, but for subjects with a vertical tab or a form feed, which servers pass on.

    nats-py takes these for the end of the subject and closes the connection, so that one such message would keep a
    consumer from all others.
    """

    parse = FunctionType(
        parser.Parser.parse.__code__,
        {**vars(parser), "MSG_RE": _MSG_RE, "HMSG_RE": _HMSG_RE},
        "parse",
        parser.Parser.parse.__defaults__,
    )


class JetStreamClient(NatsClient):
    """A connection to one server, which is not opened again when it is lost.

    `on_message` is called with the subject, the subject to reply to, the data and the headers, if there are any, of
    each message that arrives in the inbox: on a subject that begins with `inbox` and has one token more. `on_denied` is
    called with a subject to which the user may not publish, in lower case.
    """

    def __init__(
        self,
        options: NatsOptions,
        *,
        on_message: Callable[[bytes, bytes, bytes, bytes | None], None],
        on_denied: Callable[[str], None],
        on_closed: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__()
        self._ps = _Parser(self)
        self._options = options
        self.inbox = b""
        self._inbox_sid = 0
        self._on_message = on_message
        self._on_denied = on_denied
        self._on_closed = on_closed
        self._requires_tls = False
        self._is_open = False
        self._first_error: Exception | None = None
        self._denied: set[str] = set()

    async def open(self, server: Server) -> None:
        options = self._options
        self._requires_tls = server.requires_tls
        await self.connect(
            servers=[server.url],
            name=f"django_outbox {options.alias}",
            error_cb=self._handle_error,
            closed_cb=self._handle_closed,
            allow_reconnect=False,
            connect_timeout=max(round(options.node_timeout), 1),
            tls=options.tls,
            inbox_prefix=options.inbox_prefix,
            **_login(server, options),
        )
        inbox = self.new_inbox()
        self.inbox = f"{inbox}.".encode()
        subscription = await self.subscribe(f"{inbox}.*")
        self._inbox_sid = subscription._id
        # A refused subscription is reported before the response to the second ping: nats-py may send the first one
        # before the subscription.
        await self.flush()
        await self.flush()
        if self._first_error is not None:
            raise self._first_error
        self._is_open = True

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Send bytes after everything that was sent before; wait while the server does not read."""
        self.send(pieces)
        assert self._transport is not None
        await self._transport.drain()  # type: ignore[no-untyped-call]

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send bytes after everything that was sent before, without waiting."""
        assert self._transport is not None
        self._transport.write(b"".join(pieces))

    def close_inbox(self) -> None:
        self.send([b"UNSUB %d\r\n" % self._inbox_sid])

    async def ask(self, name: str, request: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Request something of JetStream's API. Raises `NoAnswer`.

        https://docs.nats.io/reference/reference-protocols/nats_api_reference
        """
        subject = f"$JS.API.{name}"
        data = b"" if request is None else json.dumps(request).encode()
        try:
            message = await self.request(subject, data, timeout=self._options.stall_timeout)
            response: dict[str, Any] = json.loads(message.data)
        except errors.NoRespondersError:
            text = "JetStream is not enabled on the server, or not for this account; start nats-server with -js"
            raise NoAnswer(text) from None
        except (errors.Error, asyncio.TimeoutError, ValueError) as error:
            if subject.lower() in self._denied:
                raise NotPermitted(f"permit the user to publish to {subject}") from None
            reason = "does not respond" if isinstance(error, asyncio.TimeoutError) else f"failed: {error}"
            raise NoAnswer(f"JetStream {reason}: {subject}") from None
        problem = response.get("error")
        if problem is not None:
            raise NoAnswer(f"JetStream: {problem.get('description')} (error {problem.get('err_code', 0)})")
        return response

    def abort(self) -> None:
        """Cut the connection, without sending what is buffered."""
        self._is_open = False
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def abandon(self) -> None:
        """Cut the connection and end nats-py's tasks."""
        self.abort()
        with suppress(Exception):
            await asyncio.wait_for(self.close(), CLOSE_TIMEOUT)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._requires_tls and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise errors.SecureConnWantedError
            # nats-py looks at this only.
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if sid == self._inbox_sid:
            self._on_message(subject, reply, data, headers)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)

    async def _handle_error(self, error: Exception) -> None:
        if self._is_open:
            subject = denied_subject(error)
            if subject is not None:
                if subject.startswith("$js.api."):
                    self._denied.add(subject)
                self._on_denied(subject)
            elif SUBSCRIPTION_DENIED in str(error).lower():
                # The server has reloaded its configuration, and has taken the inbox away.
                self._on_closed(error)
        elif self.is_connected:
            self._first_error = error
        else:
            # nats-py would try again.
            raise error

    async def _handle_closed(self) -> None:
        if self._is_open:
            self._on_closed(self.last_error)


def _login(server: Server, options: NatsOptions) -> dict[str, Any]:
    if options.credentials:
        # They are read again, because they may have been renewed; nats-py itself would read a file without a JWT
        # forever.
        return read_credentials(options.credentials)
    if server.password is not None:
        return {"user": server.user, "password": server.password}
    return {} if server.user is None else {"token": server.user}
