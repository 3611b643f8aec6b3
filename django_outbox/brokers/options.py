"""Validate the values of a publisher's options; each error names the option and the values that it takes."""

from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured

MAX_SECONDS = 86_400
"""Maximum number of seconds of every timeout: a day."""


def require_flag(option: str, value: object) -> None:
    """Require True or False.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if not isinstance(value, bool):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be True or False.")


def require_seconds(option: str, value: object) -> None:
    """Require a number of seconds above 0, at most a day.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a number of seconds above 0, at most a day.")


def require_number(option: str, value: object, lowest: int, highest: int) -> None:
    """Require a whole number within bounds.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a whole number from {lowest:,} to {highest:,}.")


def require_choice(option: str, value: object, choices: Sequence[str | None]) -> None:
    """Require one of some values.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        names = ", ".join(repr(choice) for choice in choices)
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be one of {names}.")


def require_text(option: str, value: object, example: str) -> None:
    """Require text that is not blank; `example` shows what it looks like. The error never shows the value.

    Raises:
        ImproperlyConfigured: it is something else.
    """
    if not isinstance(value, str) or not value:
        raise ImproperlyConfigured(f"{option} is missing; set it to a string like {example}.")
