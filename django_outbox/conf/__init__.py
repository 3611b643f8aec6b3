"""The `OUTBOX` setting: its defaults, its validation and lazy access."""

import datetime
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_outbox.conf.readers import (
    Mistake,
    Mistakes,
    Reader,
    at_least_a_second,
    dotted_path_or_none,
    flag,
    hint_of_key,
    number,
    optional,
    publisher_alias_or_none,
    read_keys,
    read_value,
    seconds,
    time_to_keep,
    whole_number,
)
from django_outbox.conf.retry import RetryRules, choose_policy, read_rules
from django_outbox.conf.routes import Routes, choose_publishers, find_unknown_aliases, read_routes
from django_outbox.retry import RetryEntry, RetryPolicy
from django_outbox.utils.text import is_name, shorten

MAX_PUBLISHER_ALIAS_LENGTH = 63

MAX_CONSUMER_ALIAS_LENGTH = 50

MAX_PROBLEM_LENGTH = 1000
"""Maximum number of characters of a problem, and of its hint, because a value may be a whole file."""

SOURCES = ("table", "snapshot", "log")

EXAMPLE = (
    'For example: OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.console.ConsolePublisher"}}}.'
)

PUBLISHER_HINT = (
    'It must be {"BACKEND": "dotted.path", "OPTIONS": {...}, "RETRY": {...}, "BATCH_SIZE": 500, "CLAIM_TIMEOUT": 120, '
    '"RATE_LIMIT": 100, "SOURCE": "snapshot"}, and its alias a string of 1 to '
    f"{MAX_PUBLISHER_ALIAS_LENGTH} printable characters without blanks around it."
)

CONSUMER_HINT = (
    'It must be {"BACKEND": "dotted.path", "OPTIONS": {...}}, and its alias a string of 1 to '
    f"{MAX_CONSUMER_ALIAS_LENGTH} printable characters without blanks around it."
)

_STORAGE = "a key of Django's setting STORAGES"

_CHECK_IDS = {"ROUTES": "E023", "CONSUMERS": "E035"}
"""The IDs of the system checks that report invalid values; E003 for the other keys."""


def read_by(reader: Reader) -> dict[str, Reader]:
    return {"reader": reader}


def readers_of(config: type, key: Callable[[str], str] = str.upper) -> dict[str, Reader]:
    """Return the readers of the fields of a dataclass by the keys that their names stand for."""
    return {key(each.name): each.metadata["reader"] for each in fields(config) if each.metadata}


def as_given(value: object) -> Any:
    return value


def _source(value: object) -> str:
    if value not in SOURCES:
        raise ValueError(f"one of {', '.join(map(repr, SOURCES))}")
    return str(value)


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    backend: str = field(metadata=read_by(as_given))
    # They may have passwords, and a traceback may show this object.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, metadata=read_by(as_given))
    retry: RetryRules = field(default_factory=RetryRules, metadata=read_by(read_rules))
    batch_size: int | None = field(default=None, metadata=read_by(optional(whole_number)))
    claim_timeout: float | None = field(default=None, metadata=read_by(optional(at_least_a_second)))
    source: str = field(default="table", metadata=read_by(_source))
    rate_limit: float | None = field(default=None, metadata=read_by(optional(number(0.01, 1_000_000))))


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    backend: str = field(metadata=read_by(as_given))
    # They may have passwords, and a traceback may show this object.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, metadata=read_by(as_given))


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, Mapping)
        and isinstance(backend := entry.get("BACKEND"), str)
        and not backend.startswith(".")
        and isinstance(entry.get("OPTIONS", {}), Mapping)
    )


def read_entries(value: object, config: type[Any], kind: str, hint: str, max_length: int) -> dict[str, Any]:
    """Read `PUBLISHERS` or `CONSUMERS`, or raise ValueError or Mistakes. Classes and options are not checked."""
    if not isinstance(value, Mapping):
        raise ValueError(f"a dict of {kind}s by their aliases")
    found: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for alias, entry in value.items():
        where = f"[{alias!r}]"
        if is_name(alias, max_length) and _is_entry(entry):
            found[alias] = read_value(partial(_read_entry, config=config), entry, where, mistakes)
        else:
            mistakes.append(Mistake(f"{where} is not a valid {kind} entry.", hint))
    if mistakes:
        raise Mistakes(mistakes)
    return found


def _read_entry(entry: Any, config: type[Any]) -> Any:
    return config(**read_keys(entry, readers_of(config), []))


def read_publishers(value: object) -> dict[str, PublisherConfig]:
    return read_entries(value, PublisherConfig, "publisher", PUBLISHER_HINT, MAX_PUBLISHER_ALIAS_LENGTH)


def read_consumers(value: object) -> dict[str, ConsumerConfig]:
    return read_entries(value, ConsumerConfig, "consumer", CONSUMER_HINT, MAX_CONSUMER_ALIAS_LENGTH)


def _storage_alias(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(_STORAGE)
    return value


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Where messages are archived before they are deleted, and how large a file gets, before compression."""

    storage: str = field(metadata=read_by(_storage_alias))
    max_rows: int = field(default=50_000, metadata=read_by(whole_number))
    max_bytes: int = field(default=64 * 1024 * 1024, metadata=read_by(whole_number))
    interval: float = field(default=3600.0, metadata=read_by(seconds))


def read_archive(value: object) -> ArchiveConfig | None:
    """Read `ARCHIVE`, or raise ValueError or Mistakes. Whether its storage is configured is not checked."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError('a dict such as {"storage": "outbox_archive"}, or None to delete messages without a copy')
    missing = [] if "storage" in value else [Mistake(" has no 'storage'.", f"It must be {_STORAGE}.")]
    return ArchiveConfig(**read_keys(value, readers_of(ArchiveConfig, str.lower), missing))


@dataclass(frozen=True)
class OutboxSettings:
    """`OUTBOX` with its defaults filled in. Times are in seconds, sizes in bytes."""

    publishers: Mapping[str, PublisherConfig]
    routes: Routes = field(default_factory=dict, metadata=read_by(read_routes))
    batch_size: int = field(default=2000, metadata=read_by(whole_number))
    batch_bytes: int = field(default=8 * 1024 * 1024, metadata=read_by(whole_number))
    poll_interval: float = field(default=1.0, metadata=read_by(seconds))
    retention: datetime.timedelta | None = field(default=datetime.timedelta(days=7), metadata=read_by(time_to_keep))
    archive: ArchiveConfig | None = field(default=None, metadata=read_by(read_archive))
    retry: RetryRules = field(default_factory=RetryRules, metadata=read_by(read_rules))
    max_payload_bytes: int = field(default=1024 * 1024, metadata=read_by(whole_number))
    require_transaction: bool = field(default=True, metadata=read_by(flag))
    claim_timeout: float = field(default=120.0, metadata=read_by(at_least_a_second))
    failed_blocks_key: bool = field(default=False, metadata=read_by(flag))
    lock_keys: bool = field(default=False, metadata=read_by(flag))
    notify: bool = field(default=True, metadata=read_by(flag))
    dead_letter_publisher: str | None = field(default=None, metadata=read_by(publisher_alias_or_none))
    deliver_in_runserver: bool = field(default=False, metadata=read_by(flag))
    consumers: Mapping[str, ConsumerConfig] = field(default_factory=dict, metadata=read_by(read_consumers))
    inbox_retention: datetime.timedelta | None = field(
        default=datetime.timedelta(days=30), metadata=read_by(time_to_keep)
    )
    redact: str | None = field(default=None, metadata=read_by(dotted_path_or_none))

    @cached_property
    def from_log(self) -> Set[str]:
        return frozenset(alias for alias, config in self.publishers.items() if config.source == "log")

    @cached_property
    def streamed(self) -> Set[str]:
        """The aliases of the publishers with a stream: all but those with the `SOURCE` "table"."""
        return frozenset(alias for alias, config in self.publishers.items() if config.source != "table")

    @cached_property
    def claim_timeouts(self) -> Mapping[str, float]:
        """The seconds for which a claim of a publisher's messages may be held, by alias."""
        return {alias: config.claim_timeout or self.claim_timeout for alias, config in self.publishers.items()}

    @cached_property
    def rate_limits(self) -> Mapping[str, float]:
        """How many messages of a publisher all relays may deliver in a second, by alias; absent without a limit."""
        return {alias: config.rate_limit for alias, config in self.publishers.items() if config.rate_limit}

    @cached_property
    def deletes_processed(self) -> bool:
        """Whether a message is deleted as soon as the broker has accepted it."""
        return self.retention == datetime.timedelta(0)

    def retry_policy(self, publisher_alias: str, type: str, own: RetryEntry | None = None) -> RetryPolicy:
        """Return the retry policy for messages of a type that go to a publisher.

        The publisher's `RETRY` takes precedence over `OUTBOX["RETRY"]`, and within each, the entry for the type takes
        precedence over the entry for all types. If the publisher is not configured, `OUTBOX["RETRY"]` applies. A
        handler's `own` entry takes precedence over all others.
        """
        policy = self._policy_of(publisher_alias, type)
        return policy if own is None else replace(policy, **own)

    # Cached because a batch looks them up for every message; bounded because the number of types is not.

    @cached_property
    def publishers_of(self) -> Callable[[str], tuple[str, ...]]:
        """The function that returns the aliases of the publishers for a type by `ROUTES`; `default` if none matches."""
        return lru_cache(maxsize=1000)(partial(choose_publishers, routes=self.routes))

    @cached_property
    def _policy_of(self) -> Callable[[str, str], RetryPolicy]:
        @lru_cache(maxsize=1000)
        def choose(publisher_alias: str, type: str) -> RetryPolicy:
            publisher = self.publishers.get(publisher_alias)
            return choose_policy(type, [self.retry] if publisher is None else [self.retry, publisher.retry])

        return choose


class SettingsProblem(ImproperlyConfigured):
    def __init__(self, check_id: str, message: str, hint: str) -> None:
        message, hint = shorten(message, MAX_PROBLEM_LENGTH), shorten(hint, MAX_PROBLEM_LENGTH)
        super().__init__(f"{message} {hint}")
        self.check_id = check_id
        self.message = message
        self.hint = hint

    @property
    def as_check(self) -> CheckMessage:
        make = Error if self.check_id.startswith("E") else Warning
        return make(self.message, hint=self.hint, id=f"django_outbox.{self.check_id}")


@cache
def get_settings() -> OutboxSettings:
    """Return the validated settings.

    Raises:
        SettingsProblem: the first problem found. It is an `ImproperlyConfigured`.
    """
    settings, problems = parse_settings()
    if problems:
        raise problems[0]
    assert settings is not None
    return settings


def _forget_settings(*, setting: str, **_: object) -> None:
    if setting == "OUTBOX":
        get_settings.cache_clear()


setting_changed.connect(_forget_settings, dispatch_uid="django_outbox.conf")


def parse_settings() -> tuple[OutboxSettings | None, list[SettingsProblem]]:
    return parse(getattr(django_settings, "OUTBOX", None))


def parse(raw: object) -> tuple[OutboxSettings | None, list[SettingsProblem]]:
    """Return the raw setting as `OutboxSettings`, or None if it is invalid, and all its problems."""
    if not isinstance(raw, Mapping):
        found = "is not set" if raw is None else f"must be a dict, not {type(raw).__name__}"
        return None, [SettingsProblem("E001", f"OUTBOX {found}.", EXAMPLE)]
    problems: list[SettingsProblem] = []
    values: dict[str, Any] = {}
    readers = readers_of(OutboxSettings)
    for name, value in raw.items():
        if name == "PUBLISHERS":
            continue
        reader = readers.get(name)
        if reader is None:
            hint = hint_of_key(name, ["PUBLISHERS", *readers])
            if name in ("BACKEND", "OPTIONS", "SOURCE", "RATE_LIMIT"):
                hint = f"Put it into an entry of PUBLISHERS. {EXAMPLE}"
            problems.append(SettingsProblem("E002", f"OUTBOX has an unknown key {name!r}.", hint))
            continue
        values[name.lower()] = _read(reader, value, f"OUTBOX[{name!r}]", _CHECK_IDS.get(name, "E003"), problems)
    values["publishers"] = _read_publishers(raw.get("PUBLISHERS"), problems)
    if not values["publishers"]:
        return None, problems
    publisher_alias = values.get("dead_letter_publisher")
    if publisher_alias is not None and publisher_alias not in values["publishers"]:
        hint = f"It must be an alias in PUBLISHERS ({', '.join(sorted(values['publishers']))}), or None."
        problems.append(SettingsProblem("E003", f"OUTBOX['DEAD_LETTER_PUBLISHER'] is {publisher_alias!r}.", hint))
    problems += [
        SettingsProblem("E023", f"OUTBOX['ROUTES']{mistake.message}", mistake.hint)
        for mistake in find_unknown_aliases(values.get("routes") or {}, values["publishers"])
    ]
    return (None if problems else OutboxSettings(**values)), problems


def _read_publishers(raw: object, problems: list[SettingsProblem]) -> dict[str, PublisherConfig]:
    if not isinstance(raw, Mapping | None):
        problem = f"OUTBOX['PUBLISHERS'] must be a dict, not {type(raw).__name__}."
        problems.append(SettingsProblem("E004", problem, EXAMPLE))
        return {}
    if not raw or "default" not in raw:
        hint = f"Messages go to it by default. Add it. {EXAMPLE}"
        problems.append(SettingsProblem("E004", "OUTBOX['PUBLISHERS'] has no publisher 'default'.", hint))
        return {}
    return _read(read_publishers, raw, "OUTBOX['PUBLISHERS']", "E005", problems) or {}


def _read(reader: Reader, value: object, where: str, check_id: str, problems: list[SettingsProblem]) -> Any:
    mistakes: list[Mistake] = []
    found = read_value(reader, value, where, mistakes)
    problems += [SettingsProblem(check_id, mistake.message, mistake.hint) for mistake in mistakes]
    return found
