"""`manage.py outbox_events`: the events of this project, as a list and as documents for consumers."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.events.contract.comparison import find_breaking_changes
from django_outbox.events.contract.documents import make_asyncapi, make_json_schema, make_json_schemas
from django_outbox.events.event_type import EventType
from django_outbox.events.registry import registry
from django_outbox.management.base import OutboxCommand, align

STANDARD_OUTPUT = "-"


class Command(OutboxCommand):
    help = (
        "List the events that are registered with @event, or write them as a document for\n"
        "consumers in other projects and languages. With --check the exit code is 1 if a\n"
        "change breaks them."
    )
    examples = """
  manage.py outbox_events                           list the events
  manage.py outbox_events --asyncapi events.json    write AsyncAPI
  manage.py outbox_events --json-schema schemas/    write a file for each
  manage.py outbox_events --check events.json       compare with a file
"""

    def add_arguments(self, parser: CommandParser) -> None:
        documents = parser.add_mutually_exclusive_group()
        documents.add_argument(
            "--json-schema",
            metavar="PATH",
            nargs="?",
            const=STANDARD_OUTPUT,
            help="Write JSON Schemas: one document, or a file for each event if PATH is a directory or ends with a "
            "slash, which creates the directory (default: standard output).",
        )
        documents.add_argument(
            "--asyncapi",
            metavar="FILE",
            nargs="?",
            const=STANDARD_OUTPUT,
            help="Write an AsyncAPI 3.0 document (default: standard output).",
        )
        documents.add_argument(
            "--check",
            metavar="FILE",
            help="Compare with a document that --json-schema or --asyncapi wrote, and name each change that breaks "
            "consumers.",
        )
        parser.add_argument("--title", default="Events", help="Title of the AsyncAPI document (default: %(default)s).")
        parser.add_argument(
            "--document-version",
            metavar="VERSION",
            default="1.0.0",
            help="Version of the AsyncAPI document (default: %(default)s).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.verbosity = options["verbosity"]
        if options["check"]:
            self._check(Path(options["check"]))
        elif options["asyncapi"]:
            document = make_asyncapi(registry, title=options["title"], version=options["document_version"])
            self._write(document, options["asyncapi"])
        elif options["json_schema"]:
            self._write_json_schemas(options["json_schema"])
        else:
            self._print_list()

    def _print_list(self) -> None:
        rows = [_row(each) for each in registry]
        if not rows:
            self.stdout.write("No events are registered. Decorate classes with @event in the events.py of an app.")
            return
        for line in align([("type", "version", "class", "key", "publishers"), *rows]):
            self.stdout.write(line)

    def _write_json_schemas(self, path: str) -> None:
        if path == STANDARD_OUTPUT or not (path.endswith(os.sep) or Path(path).is_dir()):
            self._write(make_json_schemas(registry), path)
            return
        with suppress(OSError):
            # Without its parent, writing a file reports it.
            Path(path).mkdir(exist_ok=True)
        for each in registry:
            self._write(make_json_schema(each), str(Path(path) / f"{quote(each.type, safe='')}.json"))

    def _write(self, document: Any, path: str) -> None:
        text = json.dumps(document, indent=2, ensure_ascii=False)
        if path == STANDARD_OUTPUT:
            self.stdout.write(text)
            return
        if not Path(path).parent.is_dir():
            raise CommandError(f"{path} cannot be written: there is no directory {Path(path).parent}. Create it first.")
        try:
            Path(path).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
        self.report(f"Wrote {path}.")

    def _check(self, path: Path) -> None:
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            changes = [*find_breaking_changes(earlier, make_json_schemas(registry))]
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise CommandError(
                f"{path} is not a document that outbox_events wrote: {error}. Write one with --json-schema {path}."
            ) from error
        if not changes:
            self.report(f"No change since {path} breaks consumers.")
            return
        self._report_changes(changes)
        count = "1 change breaks" if len(changes) == 1 else f"{len(changes):,} changes break"
        raise CommandError(
            f"{count} consumers that rely on {path}. Keep the old fields, or enqueue a new type next to the old one. "
            "Once all consumers agree, write the document again."
        )

    def _report_changes(self, changes: Iterable[str]) -> None:
        for change in changes:
            self.stdout.write(self.style.ERROR(change))


def _row(event_type: EventType) -> tuple[str, ...]:
    alias = event_type.publisher
    publishers = get_settings().publishers_of(event_type.type) if alias is None else (alias,)
    return (
        event_type.type,
        str(event_type.version),
        event_type.path,
        event_type.key or "-",
        ", ".join(publishers),
    )
