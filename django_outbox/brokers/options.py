"""Validate and read the values of options; each error names the option and the values that it takes.

No error shows a URL, because it may hold a password.
"""

import ssl
import string
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_outbox.messages import Message
from django_outbox.retry import is_number

MAX_SECONDS = 86_400
"""Maximum number of seconds of every timeout: a day."""

CONNECT_TIMEOUT = 5.0
"""Maximum number of seconds for connecting to one server, unless the option `timeout` is less."""

STALL_SHARE = 6
"""A message has stalled if there is no response for the option `timeout` divided by this. The rest is for finding out
whether the broker responds, or for trying another node."""

SSL_KEYS = ("cafile", "certfile", "keyfile")

PLACEHOLDERS = {"topic", "type", "key"}
"""The fields of a message that the name of its destination may have."""


def require_flag(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be True or False.")


def require_seconds(option: str, value: object) -> None:
    if not is_number(value) or not 0 < value <= MAX_SECONDS:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a number of seconds above 0, at most a day.")


def require_number(option: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a whole number from {lowest:,} to {highest:,}.")


def require_choice(option: str, value: object, choices: Sequence[str | None]) -> None:
    if value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be one of {names}.")


def require_text(option: str, value: object, example: str) -> None:
    """Require text that is not empty; `example` shows a valid value. The error never shows the value."""
    if not isinstance(value, str) or not value:
        raise ImproperlyConfigured(f"{option} is missing; set it to a string like {example}.")
    require_printable(option, value)


def require_printable(option: str, text: str) -> None:
    """Refuse control characters, such as the line break at the end of a file. The error never shows the text."""
    if not text.isprintable():
        raise ImproperlyConfigured(
            f"{option} contains a line break or another control character, perhaps at its end; remove it."
        )


def read_ssl(files: object) -> ssl.SSLContext:
    """Return a context that verifies the server, from the option `ssl`; `{}` is for the system's authorities alone."""
    if not isinstance(files, Mapping) or not set(files) <= set(SSL_KEYS):
        raise ImproperlyConfigured(
            f"ssl must be a dict with any of the keys {', '.join(SSL_KEYS)}, each the path of a file."
        )
    if "keyfile" in files and "certfile" not in files:
        raise ImproperlyConfigured("ssl has keyfile but no certfile; set both, or a certfile that contains the key.")
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, TypeError, ValueError) as error:
        paths = ", ".join(f"{key} {value!r}" for key, value in files.items())
        raise ImproperlyConfigured(f"ssl: {paths} cannot be loaded: {error}; each must be a PEM file.") from None
    return context


class UrlOption(NamedTuple):
    name: str
    example: str
    schemes: tuple[str, ...]

    def read(self, value: object) -> Iterator[tuple[str, SplitResult]]:
        """Read a URL, or a list of URLs."""
        urls: Sequence[Any] = value if isinstance(value, list | tuple) and value else [value]
        for url in urls:
            yield url, self.read_one(url)

    def read_one(self, url: object) -> SplitResult:
        if not isinstance(url, str) or not url:
            raise ImproperlyConfigured(f'{self.name} is missing, or not text; set it to a URL like "{self.example}".')
        scheme, separator, _rest = url.partition("://")
        if scheme not in self.schemes or not separator:
            *others, last = (f"{each}://" for each in self.schemes)
            names = f"{', '.join(others)} or {last}"
            raise ImproperlyConfigured(f'{self.name}: a URL must begin with {names}, as in "{self.example}".')
        # `urlsplit` removes some of them.
        require_printable(self.name, url)
        try:
            parts = urlsplit(url)
            is_valid = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise self.unreadable
        return parts

    @property
    def unreadable(self) -> ImproperlyConfigured:
        return ImproperlyConfigured(
            f"{self.name}: a URL cannot be read (it is not shown because it may hold a password); write it as "
            f'"{self.example}", with every special character of user, password and path percent-encoded: '
            '"@" as %40, "/" as %2F, "#" as %23.'
        )


class Template:
    """The name of a destination, such as `shop.{topic}`.

    Args:
        text: the name, in which `{topic}` stands for a message's topic (its type if that is empty), `{type}` for its
            type and `{key}` for its key. `{{` and `}}` are braces.
    """

    def __init__(self, option: str, text: object) -> None:
        if not isinstance(text, str) or not text:
            raise ImproperlyConfigured(f"{option} is {text!r}; it must be a name, such as 'shop.{{topic}}'.")
        require_printable(option, text)
        self.text = text
        try:
            parsed = [each for each in string.Formatter().parse(text) if each[1] is not None]
        except ValueError as error:
            raise ImproperlyConfigured(f"{option} is {text!r}: {error}; write braces as {{{{ and }}}}.") from None
        if any(field not in PLACEHOLDERS or format_spec or conversion for _, field, format_spec, conversion in parsed):
            raise ImproperlyConfigured(
                f"{option} is {text!r}; its placeholders must be {{topic}}, {{type}} or {{key}}, without formats."
            )
        self.is_fixed = not parsed
        # There are usually few topics, and a name is rendered for each message.
        needs_only_topic = all(field == "topic" for _, field, _, _ in parsed)
        self._of_topic = lru_cache(maxsize=1000)(lambda topic: text.format(topic=topic)) if needs_only_topic else None

    def render(self, message: Message) -> str:
        if self._of_topic:
            return self._of_topic(message.topic or message.type)
        return self.text.format(topic=message.destination, type=message.type, key=message.key)
