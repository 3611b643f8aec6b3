"""The options of both ends: validate them, and turn URLs into redis-py's arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qs, unquote

from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_outbox.brokers.options import (
    UrlOption,
    read_ssl,
    require_choice,
    require_flag,
    require_seconds,
    require_text,
)
from django_outbox.brokers.redis.names import RELEASED

URL = UrlOption("url", "redis://user:password@host:6379/0", ("redis", "rediss", "unix"))
SENTINELS = URL._replace(name="sentinels")
QUERY = ("db", "client_name")
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
SSL_KEYS = {"cafile": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
"""Keys of the option `ssl`, and redis-py's arguments."""

VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
"""Arguments of redis-py; before version 6 it does not check the host's name unless it is told to."""

Address = tuple[str, int]
"""The host and the port of a server; the path and 0 of a Unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The options of a connection.

    Args:
        addresses: the server, or some nodes of a cluster.
        arguments: arguments of redis-py's connections, besides the address.
        master: the name of the master for which the Sentinels are asked; blank without Sentinel.
        sentinel_arguments: arguments of redis-py's connections to the Sentinels.
        timeout: seconds for connecting and for all replies to a batch.
    """

    scheme: str
    addresses: tuple[Address, ...]
    arguments: Mapping[str, Any] = field(repr=False)
    master: str = ""
    sentinels: tuple[Address, ...] = ()
    sentinel_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cluster: bool = False
    timeout: float = 30.0

    def describe(self) -> str:
        """Return where it connects to, without passwords."""
        if self.master:
            return f"master {self.master!r} of the Sentinels at {name_addresses(self.sentinels)}"
        names = name_addresses(self.addresses)
        database = self.arguments.get("db", 0)
        if self.cluster:
            return f"cluster at {names}"
        return f"{self.scheme}://{names}" + (f" database {database}" if database else "")


def name_addresses(addresses: Sequence[Address]) -> str:
    """Return addresses as a list for people."""
    return ", ".join(f"{host}:{port}" if port else host for host, port in addresses)


def read_options(
    *,
    url: object,
    sentinels: object = (),
    cluster: object = False,
    ssl: object = None,
    timeout: float = 30.0,
    connect_timeout: float = 5.0,
) -> RedisOptions:
    """Validate the options that decide how to connect; they are described in `RedisStreamsPublisher`.

    Raises:
        ImproperlyConfigured: an option is invalid. The error never shows a url, which may hold a password.
    """
    require_seconds("timeout", timeout)
    require_seconds("connect_timeout", connect_timeout)
    require_flag("cluster", cluster)
    seconds = min(connect_timeout, timeout)
    read = [_read_url(URL, parts) for _, parts in URL.read(url)]
    scheme, _, arguments = read[0]
    if any((each[0], each[2]) != (scheme, arguments) for each in read):
        raise ImproperlyConfigured("url has nodes with different logins; they must differ only in host and port.")
    if len(read) > 1 and not cluster:
        raise ImproperlyConfigured(
            "url is a list, which names nodes of a cluster; set cluster=True, or name one server."
        )
    if cluster and (sentinels or scheme == "unix" or arguments.get("db")):
        raise ImproperlyConfigured(
            "cluster is True; a cluster has no sentinels, no Unix sockets and no database but 0: correct url and "
            "sentinels."
        )
    arguments |= {**_read_ssl(ssl, scheme), "socket_timeout": seconds, "socket_connect_timeout": seconds}
    options: dict[str, Any] = {"scheme": scheme, "arguments": arguments, "cluster": cluster, "timeout": timeout}
    addresses = tuple((host, port or DEFAULT_PORT) if scheme != "unix" else (host, 0) for _, (host, port), _ in read)
    if not sentinels:
        return RedisOptions(addresses=addresses, **options)
    if scheme == "unix" or read[0][1][1]:
        raise ImproperlyConfigured(
            "url must name the master of the sentinels instead of a host, without a port: redis://user:password@mymaster/0."
        )
    found = [_read_url(SENTINELS, parts) for _, parts in SENTINELS.read(sentinels)]
    kind, _, login = found[0]
    if kind == "unix" or any((each[0], each[2]) != (kind, login) for each in found):
        raise ImproperlyConfigured("sentinels must be redis:// or rediss:// urls that differ only in host and port.")
    sentinel_arguments = {**login, "socket_timeout": seconds, "socket_connect_timeout": seconds}
    if kind == "rediss":
        sentinel_arguments |= {**_read_ssl(ssl, kind), "ssl": True}
    return RedisOptions(
        addresses=(),
        master=addresses[0][0],
        sentinels=tuple((host, port or SENTINEL_PORT) for _, (host, port), _ in found),
        sentinel_arguments=sentinel_arguments,
        **options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The stream and the group to read; they are described in `RedisStreamsConsumer`.

    Args:
        name: the stream.
        rejects: whether other options reject messages.
        cluster: whether the stream is in a cluster.
    """

    name: str
    group: str
    create_group: Literal["beginning", "end"] | None
    consumer: str
    claim_idle: float
    dead_letters: str
    rejects: bool
    cluster: bool

    def __post_init__(self) -> None:
        require_text("stream", self.name, "'order.created'")
        require_text("group", self.group, "'billing'")
        require_choice("create_group", self.create_group, ("beginning", "end", None))
        require_seconds("claim_idle", self.claim_idle)
        consumer: object = self.consumer
        if not isinstance(consumer, str) or consumer == RELEASED:
            raise ImproperlyConfigured(f"consumer is {consumer!r}; it must be a string, and not {RELEASED!r}.")
        dead: object = self.dead_letters
        if not isinstance(dead, str) or dead == self.name:
            raise ImproperlyConfigured(f"dead_letters is {dead!r}; it must be the name of another stream.")
        if self.rejects and not dead:
            raise ImproperlyConfigured(
                "dead_letters is blank, but invalid or unknown_types is 'reject'; name the stream for the dead letters."
            )
        if self.cluster and dead and key_slot(self.name.encode()) != key_slot(dead.encode()):
            raise ImproperlyConfigured(
                f"dead_letters is {dead!r}, which may be on another node of the cluster than {self.name!r}; give both "
                "names the same part in braces, such as {orders}.dead and {orders}."
            )


def _read_url(option: UrlOption, parts: SplitResult) -> tuple[str, tuple[str, int | None], dict[str, Any]]:
    """Return the scheme, the address, and the arguments for the login and the database."""
    scheme, path, query = parts.scheme, unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
    host = path if scheme == "unix" else parts.hostname
    if not host or "@" in path or parts.fragment:
        raise option.unreadable
    for name in query:
        if name not in QUERY:
            raise ImproperlyConfigured(f"{option.name} must not set {name}; the query may set {' and '.join(QUERY)}.")
    database = query.get("db", [""])[0] or ("" if scheme == "unix" else path.strip("/"))
    if database and not (database.isascii() and database.isdigit()):
        raise ImproperlyConfigured(
            f'{option.name} has a database that is not a number; write it as "{option.example}".'
        )
    arguments: dict[str, Any] = {"db": int(database or 0)}
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if parts.password:
        arguments["password"] = unquote(parts.password)
    if "client_name" in query:
        arguments["client_name"] = query["client_name"][0]
    return scheme, (host, parts.port), arguments


def _read_ssl(files: object, scheme: str) -> dict[str, Any]:
    if files is None:
        return dict(VERIFIED) if scheme == "rediss" else {}
    if scheme != "rediss":
        raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with rediss://.")
    # redis-py loads the files again for each connection; here they are only checked.
    read_ssl(files)
    assert isinstance(files, Mapping)
    return {**VERIFIED, **{SSL_KEYS[key]: value for key, value in files.items()}}
