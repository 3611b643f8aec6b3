"""Find the Celery app of a publisher, and read its broker."""

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from celery import Celery
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection
from kombu.transport.pyamqp import SSLTransport
from kombu.utils.imports import symbol_by_name
from kombu.utils.url import sanitize_url

EXAMPLE = '"shop.celery:app"'

SSL_OPTIONS = {"ca_certs": "cafile", "certfile": "certfile", "keyfile": "keyfile"}
"""The keys of `broker_use_ssl` that name files, and the keys of the RabbitMQ publisher's option `ssl`."""

late_modules: set[str] = set()
"""Modules of Celery apps that nothing had imported before a publisher needed them."""


def find_app(path: object) -> Celery:
    if not isinstance(path, str) or not path:
        raise ImproperlyConfigured(f"app must be the path of the Celery app, such as {EXAMPLE}.")
    name = path.replace(":", ".").rpartition(".")[0]
    was_imported = name in sys.modules
    try:
        app = symbol_by_name(path)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"app is {path!r}, which cannot be imported: {error}.") from error
    if not isinstance(app, Celery):
        raise ImproperlyConfigured(f"app is {path!r}, which is a {type(app).__name__}; name the Celery app.")
    if not was_imported:
        late_modules.add(name)
    return app


def connect(app: Celery, **transport_options: Any) -> Connection:
    """Return a connection to the app's broker, not opened yet, with defaults for `broker_transport_options`."""
    try:
        connection = app.connection_for_write(
            transport_options={**transport_options, **app.conf.broker_transport_options}
        )
        connection.get_transport_cls()
        describe_broker(connection)
    except (ImportError, KeyError, TypeError, ValueError) as error:
        # The text of an error about a URL may quote the password.
        raise ImproperlyConfigured(
            f"the broker_url of the Celery app cannot be used ({type(error).__name__}): correct it, "
            "or install its driver"
        ) from None
    return connection


def driver_of(connection: Connection) -> str:
    return str(connection.get_transport_cls().driver_type)


def describe_broker(connection: Connection) -> str:
    """Return the URL of each node, without password and query."""
    return ", ".join(sanitize_url(url) for url in connection.alt or [connection.as_uri()])


def amqp_urls(connection: Connection) -> list[str]:
    """Return a URL for each node, as the RabbitMQ publisher reads them; refuse logins that it does not support."""
    if connection.login_method not in (None, "PLAIN", "AMQPLAIN"):
        raise ImproperlyConfigured(
            f"broker_login_method is {connection.login_method!r}; only PLAIN, with user and password, is supported."
        )
    if len(connection.alt) < 2:
        return [_amqp_url(connection)]
    settings: dict[str, Any] = {"ssl": connection.ssl, "transport": connection.transport_cls}
    return [_amqp_url(Connection(url, **settings)) for url in connection.alt]


def read_ssl(connection: Connection) -> dict[str, str] | None:
    """Return the files of `broker_use_ssl`, as the option `ssl`; refuse settings that do not verify the broker."""
    ssl: Any = connection.ssl
    if not isinstance(ssl, Mapping):
        return {} if ssl else None
    if ssl.get("cert_reqs") == 0:
        raise ImproperlyConfigured(
            "broker_use_ssl has cert_reqs=CERT_NONE, but the outbox always verifies the broker: "
            "set ca_certs to the authority of its certificate."
        )
    return {ours: ssl[theirs] for theirs, ours in SSL_OPTIONS.items() if ssl.get(theirs)}


def _amqp_url(node: Connection) -> str:
    # Kombu sets `ssl` for the scheme amqps only when the connection is opened.
    has_tls = node.ssl or issubclass(node.get_transport_cls(), SSLTransport)
    scheme, port = ("amqps", 5671) if has_tls else ("amqp", 5672)
    password: Any = node.password
    if callable(password):
        password = password()
    user, password, vhost = (
        quote(text, safe="") for text in (node.userid or "guest", password or "guest", node.virtual_host or "/")
    )
    return f"{scheme}://{user}:{password}@{node.hostname or 'localhost'}:{node.port or port}/{vhost}"
