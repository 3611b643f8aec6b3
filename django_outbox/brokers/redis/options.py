"""The options of both ends: validate them, and turn URLs into redis-py's arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import CONNECT_TIMEOUT, UrlOption, read_ssl, require_seconds

URL = UrlOption("url", "redis://user:password@host:6379/0", ("redis", "rediss"))
SENTINELS = URL._replace(name="sentinels")
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
SSL_KEYS = {"cafile": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
"""Keys of the option `ssl`, and redis-py's arguments."""

VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
"""Arguments of redis-py; before version 6 it verifies the host's name only with this argument."""

Address = tuple[str, int]
"""A host and a port."""


@dataclass(kw_only=True, eq=False, repr=False)
class RedisOptions:
    """The options of both ends: how to connect. `RedisStreamsPublisher` describes them.

    No error shows a url, which may hold a password. Either `address` is set, or `master`, for which the Sentinels are
    asked.
    """

    url: str = ""
    sentinels: str | Sequence[str] = ()
    timeout: float = 30.0
    ssl: Mapping[str, str] | None = None
    scheme: str = field(init=False)
    address: Address = field(init=False)
    arguments: Mapping[str, Any] = field(init=False)
    master: str = field(init=False, default="")
    sentinel_addresses: tuple[Address, ...] = field(init=False, default=())
    sentinel_arguments: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        seconds = min(CONNECT_TIMEOUT, self.timeout)
        timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        self.scheme, (host, port), login = _read_url(URL, URL.read_one(self.url))
        self.arguments = {**login, **_read_ssl(self.ssl, self.scheme), **timeouts}
        if not self.sentinels:
            self.address = host, port or DEFAULT_PORT
            return
        if port:
            raise ImproperlyConfigured(
                "url must name the master of the sentinels instead of a host, without a port: "
                "redis://user:password@mymaster/0."
            )
        self.master = host
        found = [_read_url(SENTINELS, parts) for _, parts in SENTINELS.read(self.sentinels)]
        kind, _, login = found[0]
        if any((each[0], each[2]) != (kind, login) for each in found):
            raise ImproperlyConfigured(
                "sentinels must be redis:// or rediss:// urls that differ only in host and port."
            )
        tls = {**_read_ssl(self.ssl, kind), "ssl": True} if kind == "rediss" else {}
        self.sentinel_addresses = tuple((host, port or SENTINEL_PORT) for _, (host, port), _ in found)
        self.sentinel_arguments = {**login, **timeouts, **tls}

    def describe_servers(self) -> str:
        """Return where it connects to, without passwords."""
        if self.master:
            return f"master {self.master!r} of the Sentinels at {name_addresses(self.sentinel_addresses)}"
        database = self.arguments["db"]
        return f"{self.scheme}://{name_addresses([self.address])}" + (f" database {database}" if database else "")


def name_addresses(addresses: Sequence[Address]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)


def _read_url(option: UrlOption, parts: SplitResult) -> tuple[str, tuple[str, int | None], dict[str, Any]]:
    host, path = str(parts.hostname), unquote(parts.path)
    database = path.strip("/")
    if "@" in path + parts.query or parts.fragment or (database and not (database.isascii() and database.isdigit())):
        raise option.unreadable
    if parts.query:
        raise ImproperlyConfigured(f"{option.name} has parameters, which are not read; set the options instead.")
    arguments: dict[str, Any] = {"db": int(database or 0)}
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if parts.password:
        arguments["password"] = unquote(parts.password)
    return parts.scheme, (host, parts.port), arguments


def _read_ssl(files: object, scheme: str) -> dict[str, Any]:
    if files is None:
        return dict(VERIFIED) if scheme == "rediss" else {}
    if scheme != "rediss":
        raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with rediss://.")
    # redis-py loads the files again for each connection; here they are only checked.
    read_ssl(files)
    assert isinstance(files, Mapping)
    return {**VERIFIED, **{SSL_KEYS[key]: value for key, value in files.items()}}
