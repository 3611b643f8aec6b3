"""The options of both ends: validate them, and read the files that they name."""

import importlib.util
import re
import ssl as tls
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from django.core.exceptions import ImproperlyConfigured
from nats.aio.client import RawCredentials

from django_outbox.brokers.options import UrlOption, read_ssl, require_seconds

SERVERS = UrlOption("servers", "nats://user:password@host:4222", ("nats", "tls"))

DEFAULT_PORT = 4222

INVALID_NAME = re.compile(r"[\s.*>/\\\x00-\x1f\x7f]")
"""Characters that the name of a stream or a domain must not contain:
https://docs.nats.io/running-a-nats-service/nats_admin/jetstream_admin/naming."""

WHITESPACE_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]")

SYSTEM_TOKENS = ("$JS", "$SYS")
"""First tokens of subjects on which NATS itself serves requests: a message there would be a command."""

MAX_SUBJECT_BYTES = 2048
"""Maximum bytes of a subject in UTF-8. The server closes the connection if the line that announces a message exceeds
its `max_control_line`, which is 4096 bytes by default, and has to hold the reply subject too."""

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
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Its URL without user and password."""
        return f"{'tls' if self.requires_tls else 'nats'}://{self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """The options of a connection; times are in seconds. NATS's monitoring shows `alias` as part of its name."""

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
) -> NatsOptions:
    """Validate the options that decide how to connect; they are described in `JetStreamPublisher`.

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
    context = None if ssl is None else read_ssl(ssl)
    if context is not None and not all(server.requires_tls for server in found):
        raise ImproperlyConfigured("ssl is set, but a URL is without TLS; every URL in servers must begin with tls://.")
    return NatsOptions(
        alias=alias,
        servers=found,
        credentials=credentials,
        ssl=context,
        domain=domain,
        inbox_prefix=inbox_prefix,
        timeout=timeout,
        connect_timeout=min(connect_timeout, timeout / len(found)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableOptions:
    """The stream and the durable consumer to read; they are described in `JetStreamConsumer`.

    Args:
        rejects: whether messages may be rejected.
        batch_size: maximum number of messages in one transaction.
        batch_bytes: maximum bytes of their bodies.
    """

    stream: str
    durable: str
    filter_subject: str
    ack_wait: float
    dead_letters: str
    rejects: bool
    batch_size: int
    batch_bytes: int

    def __post_init__(self) -> None:
        for option, value in (("stream", self.stream), ("durable", self.durable)):
            require_name(option, value)
            if not value:
                raise ImproperlyConfigured(f"{option} is blank; set it to the name of the {option}.")
        subject: object = self.filter_subject
        if not isinstance(subject, str) or WHITESPACE_OR_CONTROL.search(subject):
            raise ImproperlyConfigured(f"filter_subject is {subject!r}; it must be a subject such as 'shop.orders.>'.")
        require_seconds("ack_wait", self.ack_wait)
        dead: object = self.dead_letters
        if not isinstance(dead, str) or (dead and explain_invalid_subject(dead)):
            raise ImproperlyConfigured(f"dead_letters is {dead!r}; it must be a subject such as 'dead.billing'.")
        if self.rejects and not dead:
            raise ImproperlyConfigured(
                "dead_letters is blank, but unknown_types or invalid is 'reject'; JetStream itself has no dead "
                "letters. Set dead_letters to a subject of another stream."
            )

    @property
    def prefetch(self) -> int:
        """Maximum number of messages that are delivered ahead: while one batch is stored, the next one arrives."""
        return 2 * self.batch_size

    @property
    def max_buffer_bytes(self) -> int:
        """Size of received messages beyond which none are requested."""
        return 2 * self.batch_bytes

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with which the durable consumer is created."""
        found = {
            "durable_name": self.durable,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_wait * NANOSECONDS),
            "max_ack_pending": 10 * self.prefetch,
            "max_deliver": -1,
        }
        return {**found, "filter_subject": self.filter_subject} if self.filter_subject else found


def require_name(option: str, value: object) -> None:
    """Require the name of a stream, a consumer or a domain; it may be blank."""
    if not isinstance(value, str) or INVALID_NAME.search(value):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a name without spaces, dots, slashes, * and >.")


def explain_invalid_subject(subject: str) -> str:
    """Return why a message cannot be published to a subject, or an empty string.

    The rules are at https://docs.nats.io/nats-concepts/subjects; the server does not check all of them.
    """
    tokens = subject.split(".")
    if not subject:
        reason = "it is blank"
    elif WHITESPACE_OR_CONTROL.search(subject):
        reason = "it contains whitespace or a control character"
    elif "" in tokens:
        reason = "it has an empty token: a dot at its beginning or end, or two dots in a row"
    elif "*" in tokens or ">" in tokens:
        reason = "it has a wildcard (* or >), which is only for subscribers"
    elif tokens[0] in SYSTEM_TOKENS:
        reason = f"it begins with {tokens[0]}, where NATS itself serves requests"
    elif len(subject.encode("utf-8", "replace")) > MAX_SUBJECT_BYTES:
        reason = f"it is longer than {MAX_SUBJECT_BYTES:,} bytes"
    else:
        reason = ""
    return reason


def read_credentials(path: str) -> dict[str, Any]:
    """Return nats-py's arguments for a `.creds` file, or for a file with the seed of an nkey.

    Raises:
        ImproperlyConfigured: it cannot be read, or contains neither. The error never shows what it contains.
    """
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ImproperlyConfigured(f"credentials: {path!r} cannot be read: {reason}.") from None
    if "BEGIN NATS USER JWT" in text and "BEGIN USER NKEY SEED" in text:
        return {"user_credentials": RawCredentials(f"{text}\n")}
    if re.fullmatch(r"SU[A-Z2-7]{56}", text):
        return {"nkeys_seed_str": text}
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
