"""The `OUTBOX` setting: its defaults, its check, and lazy access to it."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_outbox.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """One entry of `OUTBOX["PUBLISHERS"]`."""

    backend: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """`OUTBOX` with its defaults filled in; times are in seconds, sizes in bytes."""

    publishers: Mapping[str, PublisherConfig]
    batch_size: int = 1000
    batch_bytes: int = 16 * 1024 * 1024
    poll_interval: float = 1.0
    retention: datetime.timedelta | None = datetime.timedelta(days=7)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_payload_bytes: int = 1024 * 1024
    require_transaction: bool = True
    lease: float = 120.0

    @property
    def deletes_processed(self) -> bool:
        """Whether a message is deleted as soon as the broker accepted it."""
        return self.retention == datetime.timedelta(0)


class SettingsProblem(ImproperlyConfigured):
    """One thing that is wrong with `OUTBOX`.

    Attributes:
        check_id: the number of the system check that reports it, `E001` for example.
        hint: what to do.
    """

    def __init__(self, check_id: str, message: str, hint: str) -> None:
        super().__init__(f"{message} {hint}")
        self.check_id = check_id
        self.message = message
        self.hint = hint


EXAMPLE = (
    'For example: OUTBOX = {"PUBLISHERS": {"default": '
    '{"BACKEND": "django_outbox.publishers.console.ConsolePublisher"}}}.'
)


def get_settings() -> OutboxSettings:
    """Return the checked settings.

    Raises:
        SettingsProblem: the first problem found; it is an `ImproperlyConfigured`.
    """
    return _cached_settings()


@cache
def _cached_settings() -> OutboxSettings:
    settings, problems = parse(getattr(django_settings, "OUTBOX", None))
    if problems:
        raise problems[0]
    assert settings is not None
    return settings


def _forget_settings(*, setting: str, **_: object) -> None:
    if setting == "OUTBOX":
        _cached_settings.cache_clear()


setting_changed.connect(_forget_settings, dispatch_uid="django_outbox.conf")


def parse(raw: object) -> tuple[OutboxSettings | None, list[SettingsProblem]]:
    """Turn the raw setting into `OutboxSettings`, or say everything that is wrong with it."""
    if not isinstance(raw, Mapping):
        found = "is not set" if raw is None else f"is a {type(raw).__name__}, not a dict"
        return None, [SettingsProblem("E001", f"OUTBOX {found}.", EXAMPLE)]
    problems: list[SettingsProblem] = []
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name == "PUBLISHERS":
            continue
        reader = _READERS.get(name)
        if reader is None:
            known = ", ".join(sorted(["PUBLISHERS", *_READERS]))
            problems.append(SettingsProblem("E002", f"OUTBOX has an unknown key {name!r}.", f"Known keys: {known}."))
            continue
        try:
            values[name.lower()] = reader(value)
        except ValueError as error:
            problems.append(SettingsProblem("E003", f"OUTBOX[{name!r}] is {value!r}.", f"It must be {error}."))
    values["publishers"] = _read_publishers(raw.get("PUBLISHERS"), problems)
    return (None if problems else OutboxSettings(**values)), problems


def _read_publishers(raw: object, problems: list[SettingsProblem]) -> dict[str, PublisherConfig]:
    if not isinstance(raw, Mapping) or "default" not in raw:
        problems.append(SettingsProblem("E004", 'OUTBOX["PUBLISHERS"] has no publisher "default".', EXAMPLE))
        return {}
    publishers = {}
    for alias, entry in raw.items():
        where = f"OUTBOX['PUBLISHERS'][{alias!r}]"
        shape = 'It must be {"BACKEND": "dotted.path", "OPTIONS": {...}}, under a name of at most 63 characters.'
        if (
            not isinstance(alias, str)
            or not 0 < len(alias) <= 63
            or not isinstance(entry, Mapping)
            or not isinstance(entry.get("BACKEND"), str)
            or not isinstance(entry.get("OPTIONS", {}), Mapping)
            or set(entry) - {"BACKEND", "OPTIONS"}
        ):
            problems.append(SettingsProblem("E005", f"{where} is not a publisher entry.", shape))
            continue
        publishers[alias] = PublisherConfig(entry["BACKEND"], entry.get("OPTIONS", {}))
    return publishers


def _whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of at least 1")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86_400 * 365:
        raise ValueError("a number of seconds above 0")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _retention(value: object) -> datetime.timedelta | None:
    if value is None or (isinstance(value, datetime.timedelta) and value >= datetime.timedelta(0)):
        return value
    raise ValueError("a timedelta of 0 or more, or None to keep messages for ever")


def _retry(value: object) -> RetryPolicy:
    if not isinstance(value, Mapping):
        raise ValueError("a dict")
    readers: dict[str, Callable[[object], Any]] = {
        "MAX_ATTEMPTS": _whole_number,
        "DELAY": _seconds,
        "FACTOR": _factor,
        "MAX_DELAY": _seconds,
        "JITTER": _jitter,
    }
    policy: dict[str, Any] = {}
    for name, entry in value.items():
        if name not in readers:
            raise ValueError(f"a dict with the keys {', '.join(readers)}; it has {name!r}")
        try:
            policy[name.lower()] = readers[name](entry)
        except ValueError as error:
            raise ValueError(f"a dict whose {name} is {error}") from None
    return RetryPolicy(**policy)


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 100:
        raise ValueError("a number from 1 to 100")
    return float(value)


def _jitter(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return float(value)


_READERS: dict[str, Callable[[object], Any]] = {
    "BATCH_SIZE": _whole_number,
    "BATCH_BYTES": _whole_number,
    "POLL_INTERVAL": _seconds,
    "RETENTION": _retention,
    "RETRY": _retry,
    "MAX_PAYLOAD_BYTES": _whole_number,
    "REQUIRE_TRANSACTION": _flag,
    "LEASE": _seconds,
}
