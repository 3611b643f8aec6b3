"""The `OUTBOX` setting: its defaults, its check, and lazy access to it."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_outbox.retry import RetryFunction, RetryPolicy
from django_outbox.retry_rules import RetryRules, choose_policy, read_rules
from django_outbox.setting_values import (
    Mistake,
    Reader,
    alias_or_none,
    at_least_a_second,
    flag,
    read_value,
    retention,
    seconds,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """One entry of `OUTBOX["PUBLISHERS"]`."""

    backend: str
    options: Mapping[str, Any]
    retry: RetryRules = field(default_factory=RetryRules)


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """`OUTBOX` with its defaults filled in; times are in seconds, sizes in bytes."""

    publishers: Mapping[str, PublisherConfig]
    batch_size: int = 2000
    batch_bytes: int = 8 * 1024 * 1024
    poll_interval: float = 1.0
    retention: datetime.timedelta | None = datetime.timedelta(days=7)
    retry: RetryRules = field(default_factory=RetryRules)
    max_payload_bytes: int = 1024 * 1024
    require_transaction: bool = True
    lease: float = 120.0
    failed_holds_key: bool = False
    serialize_keys: bool = False
    wake_up: bool = False
    dead_letter_publisher: str | None = None
    _policy_of: Callable[[str, str], RetryPolicy | RetryFunction] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A batch asks for each of its messages; types may come without end.
        object.__setattr__(self, "_policy_of", lru_cache(maxsize=1000)(self._choose_policy))

    def retry_policy(self, publisher_alias: str, type: str) -> RetryPolicy | RetryFunction:
        """Return the policy, or the function of one's own, for messages of a type that go to a publisher.

        What counts first: the publisher's `RETRY` for the type, its `RETRY` for all types, and then the same two of
        `OUTBOX["RETRY"]`. A publisher that is not configured has that of `OUTBOX["RETRY"]`.
        """
        return self._policy_of(publisher_alias, type)

    def _choose_policy(self, publisher_alias: str, type: str) -> RetryPolicy | RetryFunction:
        publisher = self.publishers.get(publisher_alias)
        return choose_policy(type, [self.retry] if publisher is None else [self.retry, publisher.retry])

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
        values[name.lower()] = _read(reader, value, f"OUTBOX[{name!r}]", "E003", problems)
    values["publishers"] = _read_publishers(raw.get("PUBLISHERS"), problems)
    dead_letters = values.get("dead_letter_publisher")
    if dead_letters is not None and dead_letters not in values["publishers"]:
        known = f"It must be one of {', '.join(sorted(values['publishers']))}, or None."
        problems.append(SettingsProblem("E003", f"OUTBOX['DEAD_LETTER_PUBLISHER'] is {dead_letters!r}.", known))
    return (None if problems else OutboxSettings(**values)), problems


def _read_publishers(raw: object, problems: list[SettingsProblem]) -> dict[str, PublisherConfig]:
    if not isinstance(raw, Mapping) or "default" not in raw:
        problems.append(SettingsProblem("E004", 'OUTBOX["PUBLISHERS"] has no publisher "default".', EXAMPLE))
        return {}
    publishers = {}
    for alias, entry in raw.items():
        where = f"OUTBOX['PUBLISHERS'][{alias!r}]"
        shape = (
            'It must be {"BACKEND": "dotted.path", "OPTIONS": {...}, "RETRY": {...}}, under a name of at most 63 '
            "characters."
        )
        if (
            not isinstance(alias, str)
            or not 0 < len(alias) <= 63
            or not isinstance(entry, Mapping)
            or not isinstance(entry.get("BACKEND"), str)
            or not isinstance(entry.get("OPTIONS", {}), Mapping)
            or set(entry) - {"BACKEND", "OPTIONS", "RETRY"}
        ):
            problems.append(SettingsProblem("E005", f"{where} is not a publisher entry.", shape))
            continue
        retry = _read(read_rules, entry.get("RETRY", {}), f"{where}['RETRY']", "E005", problems)
        publishers[alias] = PublisherConfig(entry["BACKEND"], entry.get("OPTIONS", {}), retry)
    return publishers


def _read(reader: Reader, value: object, where: str, check_id: str, problems: list[SettingsProblem]) -> Any:
    mistakes: list[Mistake] = []
    found = read_value(reader, value, where, mistakes)
    problems += [SettingsProblem(check_id, mistake.said, mistake.hint) for mistake in mistakes]
    return found


_READERS: dict[str, Reader] = {
    "BATCH_SIZE": whole_number,
    "BATCH_BYTES": whole_number,
    "POLL_INTERVAL": seconds,
    "RETENTION": retention,
    "RETRY": read_rules,
    "MAX_PAYLOAD_BYTES": whole_number,
    "REQUIRE_TRANSACTION": flag,
    "LEASE": at_least_a_second,
    "FAILED_HOLDS_KEY": flag,
    "SERIALIZE_KEYS": flag,
    "WAKE_UP": flag,
    "DEAD_LETTER_PUBLISHER": alias_or_none,
}
