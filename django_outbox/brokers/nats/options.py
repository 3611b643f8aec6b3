"""The options of both ends: validate them, and read the files that they name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import SplitResult, unquote

from django.core.exceptions import ImproperlyConfigured
from nats.aio.client import RawCredentials

from django_outbox.brokers.options import CONNECT_TIMEOUT, STALL_SHARE, UrlOption, read_ssl, require_seconds

SERVERS = UrlOption("servers", "nats://user:password@host:4222", ("nats", "tls"))

DEFAULT_PORT = 4222

WHITESPACE_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]")

SYSTEM_TOKENS = ("$JS", "$SYS")
"""First tokens of subjects on which NATS itself serves requests, where a message would be a command."""

MAX_SUBJECT_BYTES = 2048
"""Maximum bytes of a subject in UTF-8. The server closes the connection if the line that announces a message exceeds
its `max_control_line`, which is 4096 bytes by default, and has to hold the reply subject too."""

SUBJECT_RULES = (
    f"a subject has up to {MAX_SUBJECT_BYTES:,} bytes, no whitespace, control characters, wildcards or empty tokens, "
    "and does not begin with $JS or $SYS, where NATS itself serves requests"
)

NANOSECONDS = 1_000_000_000
"""JetStream's API states times in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of NATS. `user` and `password` are percent-decoded; a user without a password is a token."""

    host: str
    port: int
    requires_tls: bool
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Its URL without user and password."""
        return f"{'tls' if self.requires_tls else 'nats'}://{self.address}"


@dataclass(kw_only=True, eq=False, repr=False)
class NatsOptions:
    """The options of both ends: how to connect. `JetStreamPublisher` describes them.

    NATS's monitoring shows `alias` as part of the connection's name. No error shows a URL, which may hold a password.
    """

    alias: str = field(kw_only=False)
    servers: str | Sequence[str] = ()
    credentials: str = ""
    ssl: Mapping[str, str] | None = None
    inbox_prefix: str = "_INBOX"
    timeout: float = 30.0
    nodes: tuple[Server, ...] = field(init=False)
    node_timeout: float = field(init=False)
    tls: SSLContext | None = field(init=False)

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        self.nodes = tuple(_read_server(parts) for _, parts in SERVERS.read(self.servers))
        self.node_timeout = min(CONNECT_TIMEOUT, self.timeout / len(self.nodes))
        path: object = self.credentials
        if not isinstance(path, str):
            raise ImproperlyConfigured("credentials must be the path of a .creds file.")
        if path:
            read_credentials(path)
        prefix: object = self.inbox_prefix
        if not isinstance(prefix, str) or not is_subject(prefix):
            raise ImproperlyConfigured(f"inbox_prefix is {prefix!r}; it must be a subject such as '_INBOX'.")
        self.tls = None if self.ssl is None else read_ssl(self.ssl)
        if self.tls is not None and not all(server.requires_tls for server in self.nodes):
            raise ImproperlyConfigured(
                "ssl is set, but a URL is without TLS; every URL in servers must begin with tls://."
            )

    @property
    def stall_timeout(self) -> float:
        """Seconds that a message may go without a response before the server is probed."""
        return self.timeout / STALL_SHARE


def require_name(option: str, value: object) -> None:
    """Require the name of a stream or a consumer, which is one token of a subject."""
    if not isinstance(value, str) or "." in value or not is_subject(value):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a name without spaces and dots.")


def is_subject(text: str) -> bool:
    """Return whether a message may be published to a subject: https://docs.nats.io/nats-concepts/subjects.

    The server does not check all of it.
    """
    tokens = text.split(".")
    return (
        not WHITESPACE_OR_CONTROL.search(text)
        and not {"", "*", ">"}.intersection(tokens)
        and tokens[0] not in SYSTEM_TOKENS
        and len(text.encode("utf-8", "replace")) <= MAX_SUBJECT_BYTES
    )


def read_credentials(path: str) -> dict[str, Any]:
    """Return nats-py's arguments for a `.creds` file. No error shows the contents."""
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ImproperlyConfigured(f"credentials: {path!r} cannot be read: {reason}.") from None
    if "BEGIN NATS USER JWT" in text and "BEGIN USER NKEY SEED" in text:
        return {"user_credentials": RawCredentials(f"{text}\n")}
    raise ImproperlyConfigured(f"credentials: {path!r} is not a .creds file, with a JWT and a seed.")


def _read_server(parts: SplitResult) -> Server:
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise SERVERS.unreadable
    return Server(
        host=str(parts.hostname),
        port=parts.port or DEFAULT_PORT,
        requires_tls=parts.scheme == "tls",
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )
