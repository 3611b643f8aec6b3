"""The options of the connection to NATS: validate them, and read the files that they name."""

import importlib.util
import re
import ssl as tls
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.nats.subjects import explain_invalid_subject
from django_outbox.brokers.options import require_number, require_seconds
from django_outbox.brokers.tls import read_ssl
from django_outbox.brokers.urls import UrlOption

SERVERS = UrlOption("servers", "nats://user:password@host:4222", ("nats", "tls"))

DEFAULT_PORT = 4222


INVALID_NAME = re.compile(r"[\s.*>/\\\x00-\x1f\x7f]")
"""What the name of a stream or a domain must not contain:
https://docs.nats.io/running-a-nats-service/nats_admin/jetstream_admin/naming."""

MAX_IN_FLIGHT = 10_000
"""Maximum number of messages in flight: NATS 2.11 refuses more for one stream (`max_buffered_msgs`)."""


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
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Its URL without user and password."""
        return f"{'tls' if self.requires_tls else 'nats'}://{self.address}"


class Credentials(NamedTuple):
    """What a file of credentials contains.

    Args:
        jwt_and_seed: the contents of a `.creds` file; blank if it is a seed.
        seed: the seed of an nkey; blank if it is a `.creds` file.
    """

    jwt_and_seed: str = ""
    seed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a connection; times are in seconds."""

    alias: str
    servers: tuple[Server, ...]
    credentials: str
    ssl: tls.SSLContext | None
    domain: str
    inbox_prefix: str
    timeout: float
    connect_timeout: float

    @property
    def api(self) -> str:
        """The prefix of the subjects of JetStream's API."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def stall_timeout(self) -> float:
        """Seconds that a message may go without a response before the server is probed."""
        return self.timeout / 6


def read_options(
    alias: str,
    *,
    servers: str | Sequence[str],
    credentials: str,
    ssl: Mapping[str, str] | None,
    domain: str,
    inbox_prefix: str,
    timeout: float,
    connect_timeout: float,
) -> ConnectionOptions:
    """Validate the options that decide how to connect.

    They are described in `JetStreamPublisher`. NATS's monitoring shows `alias` as part of the connection's name.

    Raises:
        ImproperlyConfigured: an option is invalid. The error never shows a URL, which may hold a password.
    """
    require_seconds("timeout", timeout)
    require_seconds("connect_timeout", connect_timeout)
    found = tuple(_read_server(parts) for _, parts in SERVERS.read(servers))
    path: object = credentials
    if not isinstance(path, str):
        raise ImproperlyConfigured("credentials must be the path of a .creds file, or of a file with a seed.")
    if credentials:
        if importlib.util.find_spec("nkeys") is None:
            raise ImproperlyConfigured(
                "credentials needs the package nkeys: pip install django-transactional-outbox[nats]."
            )
        if any(server.user for server in found):
            raise ImproperlyConfigured("credentials is set, and a URL in servers has a user; remove one of them.")
        read_credentials(credentials)
    require_name("domain", domain)
    prefix: object = inbox_prefix
    if not isinstance(prefix, str) or explain_invalid_subject(prefix):
        raise ImproperlyConfigured(f"inbox_prefix is {prefix!r}; it must be a subject, such as '_INBOX'.")
    context = None
    if ssl is not None:
        context = read_ssl(ssl)
        if not all(server.requires_tls for server in found):
            raise ImproperlyConfigured(
                "ssl is set, but a URL is without TLS; every URL in servers must begin with tls://."
            )
    return ConnectionOptions(
        alias=alias,
        servers=found,
        credentials=credentials,
        ssl=context,
        domain=domain,
        inbox_prefix=inbox_prefix,
        timeout=timeout,
        connect_timeout=min(connect_timeout, timeout / len(found)),
    )


def require_name(option: str, value: object) -> None:
    """Require the name of a stream, a consumer or a domain; it may be blank.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if not isinstance(value, str) or INVALID_NAME.search(value):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a name without spaces, dots, slashes, * and >.")


def require_in_flight(value: object) -> None:
    """Require a number of messages in flight.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    require_number("max_in_flight", value, 1, MAX_IN_FLIGHT)


def read_credentials(path: str) -> Credentials:
    """Read a `.creds` file, or a file with the seed of an nkey.

    Raises:
        ImproperlyConfigured: it cannot be read, or contains neither. The error never shows what it contains.
    """
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ImproperlyConfigured(f"credentials: {path!r} cannot be read: {reason}.") from None
    if "BEGIN NATS USER JWT" in text and "BEGIN USER NKEY SEED" in text:
        return Credentials(jwt_and_seed=f"{text}\n")
    if re.fullmatch(r"SU[A-Z2-7]{56}", text):
        return Credentials(seed=text)
    raise ImproperlyConfigured(
        f"credentials: {path!r} is neither a .creds file, with a JWT and a seed, nor the seed of a user's nkey."
    )


def _read_server(parts: SplitResult) -> Server:
    if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise SERVERS.unreadable
    return Server(
        host=parts.hostname,
        port=parts.port or DEFAULT_PORT,
        requires_tls=parts.scheme == "tls",
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )
