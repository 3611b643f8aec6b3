"""Replace the publishers of the settings by publishers in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django.conf import settings
from django.test.utils import override_settings

from django_outbox.brokers import memory
from django_outbox.brokers.publisher import TransactionalPublisher
from django_outbox.brokers.registry import import_backend

MEMORY = "django_outbox.brokers.memory.MemoryPublisher"


@contextmanager
def memory_publishers() -> Iterator[None]:
    """Replace each publisher of `OUTBOX` by a `MemoryPublisher`, except publishers that call handlers.

    `django_outbox.brokers.memory.published` is empty at the beginning.
    """
    outbox = settings.OUTBOX
    publishers = {alias: _in_memory(entry) for alias, entry in outbox["PUBLISHERS"].items()}
    memory.published.clear()
    with (
        override_settings(OUTBOX={**outbox, "PUBLISHERS": publishers}),
        mock.patch.dict(_replaced, outbox["PUBLISHERS"]),
    ):
        yield


_replaced: dict[str, Any] = {}
"""The entries of the publishers that are replaced."""


def find_celery_app(publisher_alias: str) -> str | None:
    """Return the path of the Celery app of a publisher, which may be replaced; None if it names none."""
    publishers: Mapping[str, Any] = {**settings.OUTBOX["PUBLISHERS"], **_replaced}
    path: str | None = publishers.get(publisher_alias, {}).get("OPTIONS", {}).get("app")
    return path


def _in_memory(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    # Tests need no driver.
    if issubclass(import_backend(entry["BACKEND"]), TransactionalPublisher):
        return entry
    return {**{name: value for name, value in entry.items() if name != "OPTIONS"}, "BACKEND": MEMORY}
