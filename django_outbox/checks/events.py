"""Check the classes of events."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from django.core.checks import CheckMessage, Error

from django_outbox.checks.registration import of_settings
from django_outbox.conf import OutboxSettings
from django_outbox.conf.routes import hint_of_publisher
from django_outbox.events.event_type import EventType
from django_outbox.events.registry import registry as event_registry
from django_outbox.exceptions import InvalidEvent


@of_settings
def check_events(settings: OutboxSettings) -> Iterator[CheckMessage]:
    for first, second in event_registry.conflicts:
        yield Error(
            f"Two classes are registered for the event {first.type}: {first.path} and {second.path}.",
            hint="Give one of them another type. If the second one is a newer version, change the class instead, "
            "increase its version and write an upgrade.",
            id="django_outbox.E019",
        )
    for event_type in event_registry:
        yield from _check_key(event_type)
        yield from _check_upgrades(event_type)
        yield from _check_schema(event_type)
        yield from _check_event_publisher(event_type, settings.publishers)


def _check_key(event_type: EventType) -> Iterator[CheckMessage]:
    known = event_type.codec.field_names
    try:
        unknown = [name for name in event_type.key_fields if name not in known]
        problem = f"has no field {unknown[0]!r}" if unknown else ""
    except ValueError as error:
        unknown, problem = [], f"cannot use it as a template: {error}"
    if problem:
        similar = "".join(f"Did you mean {{{name}}}? " for name in get_close_matches((unknown or [""])[0], known, n=1))
        yield Error(
            f"The key of the event {event_type.type} is {event_type.key!r}, but {event_type.path} {problem}.",
            hint=f"{similar}It must be a template such as 'order-{{id}}', with names of fields in braces. Fields: "
            f"{', '.join(known)}.",
            id="django_outbox.E020",
        )


def _check_upgrades(event_type: EventType) -> Iterator[CheckMessage]:
    for version in event_type.missing_upgrades:
        yield Error(
            f"The upgrades of the event {event_type.type} have a gap: {event_type.path} has one from an older "
            f"version, but none from version {version}.",
            hint=f"Write one with @upgrade({event_type.cls.__name__}, from_version={version}).",
            id="django_outbox.E021",
        )


def _check_schema(event_type: EventType) -> Iterator[CheckMessage]:
    try:
        event_type.codec.schema("#/$defs/{model}")
    except InvalidEvent as error:
        yield Error(
            f"The event {event_type.type} cannot be encoded: {error}.",
            hint=f"Change the annotations of {event_type.path}.",
            id="django_outbox.E022",
        )


def _check_event_publisher(event_type: EventType, publishers: Collection[str]) -> Iterator[CheckMessage]:
    alias = event_type.publisher
    if alias is not None and alias not in publishers:
        yield Error(
            f"The event {event_type.type} names the publisher {alias!r}, which is not configured.",
            hint=hint_of_publisher(alias, publishers),
            id="django_outbox.E024",
        )
