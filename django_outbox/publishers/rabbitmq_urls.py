"""The options `url` and `ssl` of the RabbitMQ publisher: what pika connects to."""

import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

import pika
from django.core.exceptions import ImproperlyConfigured

EXAMPLE = '"amqp://user:password@host:5672/vhost"'

OPTION_INSTEAD = {
    "ssl_options": "the option ssl",
    "blocked_connection_timeout": "the option blocked_timeout",
    "socket_timeout": "the option timeout",
    "stack_timeout": "the option timeout",
    "connection_attempts": "a list of urls; each publish makes one attempt at each",
    "retry_delay": "a list of urls; each publish makes one attempt at each",
}
"""Parameters of pika's URLs that have a better place here."""

SSL_KEYS = ("cafile", "certfile", "keyfile")


def read_hosts(
    url: str | Sequence[str],
    ssl_files: Mapping[str, str] | None,
    *,
    name: str,
    timeout: float,
    blocked_timeout: float,
    heartbeat: int | None,
) -> tuple[pika.URLParameters, ...]:
    """Turn the urls into pika's parameters, ready to connect with.

    Args:
        url: one url, or several.
        ssl_files: the option `ssl`.
        name: how the connection is called in RabbitMQ's management pages.
        timeout: seconds for connecting, all urls together.
        blocked_timeout: seconds that the broker may block the connection.
        heartbeat: seconds, where the url says nothing.

    Raises:
        ImproperlyConfigured: something is wrong with them; it never shows a url, which may hold a password.
    """
    urls: object = [url] if isinstance(url, str) else url
    if not isinstance(urls, list | tuple) or not all(isinstance(each, str) for each in urls):
        raise ImproperlyConfigured(f"url must be a string like {EXAMPLE}, or a list of such.")
    if not urls or "" in urls:
        raise ImproperlyConfigured(f"url is missing; set it to a string like {EXAMPLE}, or to a list of such.")
    hosts = tuple(_read_url(each) for each in urls)
    if ssl_files is not None:
        context = _read_ssl(ssl_files)
        if not all(host.ssl_options for host in hosts):
            raise ImproperlyConfigured("ssl is set, but a url is without TLS; let each begin with amqps://.")
        for host in hosts:
            host.ssl_options = pika.SSLOptions(context, host.host)
    for host, each in zip(hosts, urls, strict=True):
        if "heartbeat" not in parse_qs(urlsplit(each).query):
            host.heartbeat = heartbeat
        host.socket_timeout = host.stack_timeout = timeout / len(hosts)
        host.blocked_connection_timeout = blocked_timeout
        host.connection_attempts = 1
        host.client_properties = {**(host.client_properties or {}), "connection_name": name}
    return hosts


def _read_url(url: str) -> pika.URLParameters:
    scheme, separator, _rest = url.partition("://")
    if scheme not in ("amqp", "amqps") or not separator:
        raise ImproperlyConfigured(f"url must begin with amqp:// or amqps://, as in {EXAMPLE}.")
    try:
        parts = urlsplit(url)
        readable = bool(parts.hostname) and parts.port != 0 and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:
        readable = False
    if not readable or (parts.username is not None and parts.password is None):
        raise ImproperlyConfigured(
            f"url cannot be read (it is not shown, for the sake of its password); write it as {EXAMPLE}, with every "
            'special character of user, password and vhost percent-encoded: "@" as %40, "/" as %2F, "#" as %23.'
        )
    for parameter in parse_qs(parts.query):
        if parameter in OPTION_INSTEAD:
            raise ImproperlyConfigured(f"url must not set {parameter}; use {OPTION_INSTEAD[parameter]}.")
    try:
        return pika.URLParameters(url)
    except Exception as error:
        raise ImproperlyConfigured(f"url has a query that cannot be read: {error}.") from None


def _read_ssl(files: object) -> ssl.SSLContext:
    if not isinstance(files, Mapping) or not set(files) <= set(SSL_KEYS):
        raise ImproperlyConfigured(f"ssl must be a dict with the keys {', '.join(SSL_KEYS)}, each the path of a file.")
    if "keyfile" in files and "certfile" not in files:
        raise ImproperlyConfigured("ssl has keyfile but no certfile; give both, or certfile with the key in it.")
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, TypeError, ValueError) as error:
        named = ", ".join(f"{key} {value!r}" for key, value in files.items())
        raise ImproperlyConfigured(f"ssl: {named} cannot be loaded: {error}; each must be a PEM file.") from None
    return context
