"""Names of destinations that depend on the message."""

import string
from collections.abc import Callable

from django.core.exceptions import ImproperlyConfigured

from django_outbox.messages import Message

_FIELDS: dict[str, Callable[[Message], str]] = {
    "topic": lambda message: message.destination,
    "type": lambda message: message.type,
    "key": lambda message: message.key,
}


class Template:
    """The name of a destination, such as `shop.{topic}`.

    Args:
        option: the name of the option that holds it, for the error.
        text: the name, in which `{topic}` stands for a message's topic (its type if that is blank), `{type}` for its
            type and `{key}` for its key. `{{` and `}}` are braces.
        encode: called with the value of each placeholder; returns what is put into the name.

    Raises:
        ImproperlyConfigured: it is not text, is blank, or has other placeholders.
    """

    def __init__(self, option: str, text: object, *, encode: Callable[[str], str] | None = None) -> None:
        if not isinstance(text, str) or not text:
            raise ImproperlyConfigured(f"{option} is {text!r}; it must be a name, such as 'shop.{{topic}}'.")
        self.text = text
        self._encode = encode
        self._parts: list[tuple[str, Callable[[Message], str] | None]] = []
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ImproperlyConfigured(f"{option} is {text!r}: {error}; write braces as {{{{ and }}}}.") from None
        for literal, field, format_spec, conversion in parsed:
            if field is not None and (field not in _FIELDS or format_spec or conversion):
                raise ImproperlyConfigured(
                    f"{option} is {text!r}; its placeholders must be {{topic}}, {{type}} or {{key}}, without formats."
                )
            self._parts.append((literal, None if field is None else _FIELDS[field]))

    @property
    def is_fixed(self) -> bool:
        """Whether the name is the same for all messages."""
        return all(read is None for _, read in self._parts)

    def render(self, message: Message) -> str:
        """Return the name for a message."""
        if self._encode is not None:
            encode = self._encode
            return "".join(literal + (encode(read(message)) if read else "") for literal, read in self._parts)
        if self.text == "{topic}":
            return message.topic or message.type
        return "".join(literal + (read(message) if read else "") for literal, read in self._parts)
