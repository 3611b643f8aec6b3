"""`manage.py outbox_events`: the events of this project, as a list and as documents for consumers."""

import difflib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.events.documents import METADATA, make_asyncapi, make_json_schema, make_json_schemas
from django_outbox.events.event_type import EventType
from django_outbox.events.registry import registry
from django_outbox.handlers.registry import registry as handlers
from django_outbox.management.base import OutboxCommand, align

STANDARD_OUTPUT = "-"


class Command(OutboxCommand):
    help = (
        "List the events that are registered with @event, or write them as a document for\n"
        "consumers in other projects and languages. With --check the exit code is 1 if a\n"
        "document is out of date."
    )
    examples = """
  manage.py outbox_events                           list the events
  manage.py outbox_events --asyncapi events.json    write AsyncAPI
  manage.py outbox_events --json-schema schemas/    write a file for each
  manage.py outbox_events --check events.json       show what has changed since
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
            metavar="PATH",
            help="Compare with what --asyncapi or --json-schema has written, a file or a directory, and show the "
            "difference.",
        )
        parser.add_argument("--title", default="Events", help="Title of the AsyncAPI document (default: %(default)s).")
        parser.add_argument(
            "--document-version",
            metavar="VERSION",
            default="1.0.0",
            help="Version of the AsyncAPI document (default: %(default)s).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["check"]:
            self._check(Path(options["check"]))
        elif options["asyncapi"]:
            document = _make_asyncapi(options["title"], options["document_version"])
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
        for line in align([("type", "version", "class", "key", "publishers", "handlers"), *rows]):
            self.write_line(line)

    def _write_json_schemas(self, path: str) -> None:
        if path == STANDARD_OUTPUT or not (path.endswith(os.sep) or Path(path).is_dir()):
            self._write(make_json_schemas(registry), path)
            return
        with suppress(OSError):
            # Without its parent, writing a file reports it.
            Path(path).mkdir(exist_ok=True)
        for name, text in _files():
            self._write_text(text, str(Path(path) / name))

    def _write(self, document: Any, path: str) -> None:
        if path == STANDARD_OUTPUT:
            self.stdout.write(_text(document), ending="")
        else:
            self._write_text(_text(document), path)

    def _write_text(self, text: str, path: str) -> None:
        if not Path(path).parent.is_dir():
            raise CommandError(f"{path} cannot be written: there is no directory {Path(path).parent}. Create it first.")
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
        self.report(f"Wrote {path}.")

    def _check(self, path: Path) -> None:
        if path.is_dir():
            option = "--json-schema"
            now = dict(_files())
            before = {file.name: self._read(file) for file in path.glob("*.json")}
            texts = [(str(path / name), before.get(name, ""), now.get(name, "")) for name in sorted({*before, *now})]
        else:
            before_text = self._read(path)
            option, document = self._make_again(path, before_text)
            texts = [(str(path), before_text, _text(document))]
        difference = [line for name, old, new in texts for line in _compare(name, old, new)]
        if not difference:
            self.report(f"{path} is up to date.")
            return
        for line in difference:
            style = {"-": self.style.ERROR, "+": self.style.SUCCESS}.get(line[0], str)
            self.write_line(line, style)
        raise CommandError(
            f"{path} is out of date. If consumers can do with the change, write it again with {option} {path}."
        )

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CommandError(f"{path} cannot be read: {reason}.") from error

    def _make_again(self, path: Path, text: str) -> tuple[str, Any]:
        """Return the option that has written a document, and the document as the option would write it now."""
        try:
            before = json.loads(text)
            if "asyncapi" in before:
                info = before["info"]
                return "--asyncapi", _make_asyncapi(info["title"], info["version"])
            if METADATA in before:
                raise CommandError(f"{path} is the schema of one event. Give its directory to --check.")
            if "$defs" in before:
                return "--json-schema", make_json_schemas(registry)
        except (ValueError, LookupError, TypeError):
            pass
        raise CommandError(
            f"{path} is not a document that outbox_events wrote. Write one with --asyncapi {path}, or with "
            f"--json-schema {path}."
        )


def _make_asyncapi(title: str, version: str) -> dict[str, Any]:
    names = {each.type: [found.name for found in handlers.for_type(each.type)] for each in registry}
    return make_asyncapi(registry, title=title, version=version, handlers=names)


def _files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the file of each event."""
    for each in registry:
        yield f"{quote(each.type, safe='')}.json", _text(make_json_schema(each))


def _text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _compare(name: str, old: str, new: str) -> Iterator[str]:
    return difflib.unified_diff(old.splitlines(), new.splitlines(), f"{name} (written)", f"{name} (now)", lineterm="")


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
