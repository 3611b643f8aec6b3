"""The options of both ends: validate them, and turn URLs into redis-py's arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import UrlOption, read_ssl, require_seconds

URL = UrlOption("url", "redis://user:password@host:6379/0", ("redis", "rediss"))
DEFAULT_PORT = 6379

SSL_KEYS = {"cafile": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
"""Keys of the option `ssl`, and redis-py's arguments."""

VERIFIED = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
"""Arguments of redis-py; before version 6 it verifies the host's name only with this argument."""


@dataclass(kw_only=True, eq=False, repr=False)
class RedisOptions:
    """The options of both ends: how to connect. `RedisStreamsPublisher` describes them.

    No error shows a url, which may hold a password.

    Attributes:
        arguments: arguments of redis-py's connections.
    """

    url: str = ""
    timeout: float = 30.0
    connect_timeout: float = 5.0
    ssl: Mapping[str, str] | None = None
    scheme: str = field(init=False)
    arguments: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        require_seconds("connect_timeout", self.connect_timeout)
        parts = URL.read_one(self.url)
        self.scheme = parts.scheme
        seconds = min(self.connect_timeout, self.timeout)
        self.arguments = {
            **_read_url(parts),
            **_read_ssl(self.ssl, self.scheme),
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
        }

    def describe_server(self) -> str:
        """Return where it connects to, without the password."""
        host, port, database = (self.arguments[name] for name in ("host", "port", "db"))
        return f"{self.scheme}://{host}:{port}" + (f" database {database}" if database else "")


def _read_url(parts: SplitResult) -> dict[str, Any]:
    path = unquote(parts.path)
    if "@" in path + parts.query or parts.fragment:
        raise URL.unreadable
    if parts.query:
        raise ImproperlyConfigured("url has parameters, which are not read; set the options instead.")
    database = path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ImproperlyConfigured(f'url has a database that is not a number; write it as "{URL.example}".')
    arguments = {"host": str(parts.hostname), "port": parts.port or DEFAULT_PORT, "db": int(database or 0)}
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if parts.password:
        arguments["password"] = unquote(parts.password)
    return arguments


def _read_ssl(files: object, scheme: str) -> dict[str, Any]:
    if files is None:
        return dict(VERIFIED) if scheme == "rediss" else {}
    if scheme != "rediss":
        raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with rediss://.")
    # redis-py loads the files again for each connection; here they are only checked.
    read_ssl(files)
    assert isinstance(files, Mapping)
    return {**VERIFIED, **{SSL_KEYS[key]: value for key, value in files.items()}}
