"""Replace the publishers of the settings by publishers in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.utils import override_settings
from django.utils.module_loading import import_string

from django_outbox.publishers import memory
from django_outbox.publishers.base import TransactionalPublisher

MEMORY = "django_outbox.publishers.memory.MemoryPublisher"


@contextmanager
def memory_publishers() -> Iterator[None]:
    """Replace each publisher of `OUTBOX` by a `MemoryPublisher`, except those that work in the database: handlers.

    `django_outbox.publishers.memory.published` is empty at the beginning.
    """
    outbox = settings.OUTBOX
    publishers = {alias: _in_memory(entry) for alias, entry in outbox["PUBLISHERS"].items()}
    memory.published.clear()
    with override_settings(OUTBOX={**outbox, "PUBLISHERS": publishers}):
        yield


def _in_memory(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        backend = import_string(entry["BACKEND"])
    except ImportError:
        # Tests need no driver.
        backend = None
    if isinstance(backend, type) and issubclass(backend, TransactionalPublisher):
        return entry
    return {**{name: value for name, value in entry.items() if name != "OPTIONS"}, "BACKEND": MEMORY}
