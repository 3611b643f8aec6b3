"""Read the `ARCHIVE` setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_outbox.conf.readers import Mistake, Mistakes, Reader, hint_of_key, read_value, seconds, whole_number


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Where messages are archived before they are deleted, and how large a file gets.

    Attributes:
        storage: a key of Django's `STORAGES`.
        max_rows: maximum number of messages in a file.
        max_bytes: maximum bytes of a file before compression; one message is archived however large it is.
        interval: seconds between two purges of a relay.
    """

    storage: str
    max_rows: int = 50_000
    max_bytes: int = 64 * 1024 * 1024
    interval: float = 3600.0


def read_archive(value: object) -> ArchiveConfig | None:
    """Read `ARCHIVE`. Whether its storage is configured is not checked.

    Raises:
        ValueError: it is neither a dict nor None.
        Mistakes: all mistakes within the dict.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError('a dict such as {"storage": "outbox_archive"}, or None to delete messages without a copy')
    mistakes: list[Mistake] = []
    values: dict[str, Any] = {}
    if "storage" not in value:
        mistakes.append(Mistake(" has no 'storage'.", f"It must be {_STORAGE}."))
    for name, raw in value.items():
        if name in _READERS:
            values[name] = read_value(_READERS[name], raw, f"[{name!r}]", mistakes)
        else:
            mistakes.append(Mistake(f" has an unknown key {name!r}.", hint_of_key(name, _READERS)))
    if mistakes:
        raise Mistakes(mistakes)
    return ArchiveConfig(**values)


_STORAGE = "a key of Django's setting STORAGES"


def _storage_alias(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(_STORAGE)
    return value


_READERS: dict[str, Reader] = {
    "storage": _storage_alias,
    "max_rows": whole_number,
    "max_bytes": whole_number,
    "interval": seconds,
}
