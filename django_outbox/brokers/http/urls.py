"""The option `url`: where messages are sent."""

import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.options import Template, require_printable
from django_outbox.messages import Message

EXAMPLE = '"https://shop.example.com/hooks/{type}"'

DEFAULT_PORTS = {"http": 80, "https": 443}

_REST = re.compile(r"[!-~]*")
"""Printable ASCII without the space: everything else in a URL is percent-encoded."""


class Origin(NamedTuple):
    """The server of a URL. `host` is a name or an IP address, without the brackets of IPv6."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


class Url:
    """The URL of the receiver; its path and query may depend on the message.

    Args:
        text: the URL. `{topic}`, `{type}` and `{key}` in its path or query stand for the message's values, as in
            `Template`, percent-encoded.

    Raises:
        ImproperlyConfigured: it cannot be read. The error never shows it, because its path may hold a secret.
    """

    def __init__(self, text: object) -> None:
        self.origin, rest = _split(text)
        if not _REST.fullmatch(rest):
            raise ImproperlyConfigured("url has characters that must be percent-encoded, such as a space as %20.")
        try:
            self._template = Template("url", rest, encode=lambda value: quote(value, safe=""))
        except ImproperlyConfigured:
            raise ImproperlyConfigured(
                "url has placeholders that are not known; it may have {topic}, {type} and {key}, as in "
                f"{EXAMPLE}. Write braces as {{{{ and }}}}."
            ) from None
        self._needs_key = "{key}" in rest

    def target(self, message: Message) -> bytes:
        """Return the path and the query for a message, or raise Unencodable."""
        if self._needs_key and not message.key:
            raise Unencodable("the url contains {key}, but the message has no key")
        target = self._template.render(message)
        # Dots cannot be percent-encoded: servers read %2E%2E as "..".
        if not self._template.is_fixed and {".", ".."} & set(target.partition("?")[0].split("/")):
            raise Unencodable('the path of the url would contain "." or ".."')
        return target.encode()


def _split(text: object) -> tuple[Origin, str]:
    if not text:
        raise ImproperlyConfigured(f"url is missing; set it to a string like {EXAMPLE}.")
    if not isinstance(text, str):
        raise ImproperlyConfigured(
            f"url (it is not shown because it may hold a secret) must be a string like {EXAMPLE}."
        )
    require_printable("url", text)
    unreadable = ImproperlyConfigured(
        f"url cannot be read (it is not shown because it may hold a secret); write it as {EXAMPLE}, without a fragment."
    )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise unreadable from None
    if "{" in parts.netloc or "}" in parts.netloc:
        raise ImproperlyConfigured("url has a placeholder in its host; only the path and the query may have some.")
    if not parts.netloc.isascii():
        # Python's own encoding turns "ß" into "ss", which is another host by the current standard.
        raise ImproperlyConfigured("url has a host that is not ASCII; write its name as in DNS: xn--bcher-kva.example.")
    if "@" in parts.netloc:
        raise ImproperlyConfigured(
            "url contains a user or a password; set the header authorization in headers instead."
        )
    if parts.scheme not in DEFAULT_PORTS or not host or port == 0 or parts.fragment or " " in host:
        raise unreadable
    query = f"?{parts.query}" if parts.query else ""
    return Origin(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme]), (parts.path or "/") + query
