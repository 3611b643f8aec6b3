"""How the system checks of this app are registered."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register

from django_outbox.conf import OutboxSettings, parse_settings

TAG = "django_outbox"
"""Selects the checks of this app: `manage.py check --tag django_outbox`."""


Check = Callable[..., list[CheckMessage]]


def registered(find: Callable[[], Iterator[CheckMessage]]) -> Check:

    @register(TAG)
    def check(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
        return [*find()]

    return check


def of_settings(find: Callable[[OutboxSettings], Iterator[CheckMessage]]) -> Check:
    """Register a function as a check of the settings; if they cannot be read, `check_settings` reports that."""

    @registered
    def check() -> Iterator[CheckMessage]:
        if settings := parse_settings()[0]:
            yield from find(settings)

    return check
