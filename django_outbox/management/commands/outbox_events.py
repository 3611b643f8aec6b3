"""`manage.py outbox_events`: the events of this project, as a list and as a document for consumers."""

import json
from typing import Any

from django.core.management.base import CommandParser

from django_outbox.conf import get_settings
from django_outbox.events.documents import make_asyncapi
from django_outbox.events.event_type import EventType
from django_outbox.events.registry import registry
from django_outbox.handlers.registry import registry as handlers
from django_outbox.management.base import OutboxCommand, align


class Command(OutboxCommand):
    help = (
        "List the events that are registered with @event, or print them as a document for\n"
        "consumers in other projects and languages."
    )
    examples = """
  manage.py outbox_events               list the events
  manage.py outbox_events --asyncapi    print AsyncAPI
"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--asyncapi", action="store_true", help="Print an AsyncAPI 3.0 document.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["asyncapi"]:
            document = make_asyncapi(registry)
            # ASCII, which a redirected standard output has in every encoding.
            self.stdout.write(json.dumps(document, indent=2))
        elif rows := [_row(each) for each in registry]:
            for line in align([("type", "version", "class", "key", "publishers", "handlers"), *rows]):
                self.write_line(line)
        else:
            self.stdout.write("No events are registered. Decorate classes with @event in the events.py of an app.")


def _row(event_type: EventType) -> tuple[str, ...]:
    alias = event_type.publisher
    publishers = get_settings().publishers_of(event_type.type) if alias is None else (alias,)
    return (
        event_type.type,
        str(event_type.version),
        event_type.path,
        event_type.key or "-",
        ", ".join(publishers),
        ", ".join(each.place for each in handlers.for_type(event_type.type)) or "-",
    )
