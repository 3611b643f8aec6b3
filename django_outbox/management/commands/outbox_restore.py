"""`manage.py outbox_restore`: list the archives, and bring archived messages back."""

import datetime
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from django.utils.timezone import localtime

from django_outbox.conf import get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.management.base import OutboxCommand, align
from django_outbox.management.failed import add_filters
from django_outbox.models import Status
from django_outbox.redaction import redacted
from django_outbox.retention.archive.lines import ArchivedMessage
from django_outbox.retention.archive.restoring import (
    Filters,
    Restored,
    Selection,
    batches,
    describe_result,
    find_present,
    restore,
    to_json,
)
from django_outbox.retention.archive.storage import REASONS, ArchiveStorage
from django_outbox.text import counted

READ = "read"
STATUSES = {"failed": Status.FAILED, "pending": Status.PENDING}


Groups = Counter[tuple[str, str]]
"""The number of the chosen messages by type and error class."""


class Command(OutboxCommand):
    help = (
        "Bring back messages that were archived before they were purged or discarded.\n"
        "Without --as, the command lists the archives. With it, the command shows what it\n"
        "found, and asks for confirmation on a terminal. Restored messages keep their\n"
        "message_id; one that is in the table already is left alone."
    )
    examples = """
  manage.py outbox_restore                       list the archives
  manage.py outbox_restore --as failed --reason discarded --archived-after 1h
  manage.py outbox_restore --as pending --type "order.*" --dry-run
  manage.py outbox_restore --as read --key order-7    print as JSON Lines
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--as",
            dest="target",
            choices=[*STATUSES, READ],
            help="failed: to look at and requeue; pending: to be delivered again; read: print, and write nothing.",
        )
        parser.add_argument(
            "--archive", metavar="NAME", action="append", help="Only this archive of the list; may be repeated."
        )
        parser.add_argument("--reason", choices=REASONS, help="Only messages that were archived for this reason.")
        add_filters(parser, "archived", listed="archives written", participle="restored")
        parser.add_argument(
            "--message-id", metavar="UUID", type=uuid.UUID, action="append", help="Only this message; may be repeated."
        )
        self.add_no_input_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        database = self.get_database(options)
        config = get_settings().archive
        if config is None:
            raise CommandError(
                'There is no archive. Set OUTBOX["ARCHIVE"], for example to {"storage": "outbox_archive"}.'
            )
        filters = _filters(options)
        storage = ArchiveStorage(config.storage, database)
        try:
            if options["target"] is None:
                self._list(storage, filters)
                return
            if filters == Filters() and not (options["all"] or options["dry_run"]):
                raise CommandError("Choose messages by a filter, or use --all. Add --dry-run to try it first.")
            selection = Selection(storage, filters)
            if options["target"] == READ:
                self._print(selection, options["limit"])
            else:
                self._restore(selection, database, options)
        except ArchiveUnavailable as error:
            raise CommandError(str(error)) from error
        if selection.damaged:
            raise CommandError(
                "These archives are damaged: their files do not have the checksum of their manifests. "
                f"{'What could be read of them was printed' if options['target'] == READ else 'They were left out'}: "
                f"{', '.join(sorted(selection.damaged))}."
            )

    def _list(self, storage: ArchiveStorage, filters: Filters) -> None:
        lines = [("archive", "reason", "by", "archived at", "messages", "bytes", "")]
        messages = files = unfinished = 0
        for found in filters.find(storage):
            if found.manifest is None:
                unfinished += 1
                continue
            manifest = found.manifest
            note = "" if found.committed else "not committed: may hold doubles"
            at = localtime(manifest.archived_at).isoformat(" ", "seconds")
            by = manifest.by or "-"
            lines.append((found.name, manifest.reason, by, at, f"{manifest.count:,}", f"{manifest.size:,}", note))
            files += 1
            messages += manifest.count
        self._table(lines)
        self.write_line(f"Found {counted(files, 'archive')} with {counted(messages, 'message')}.")
        if unfinished:
            were = "was" if unfinished == 1 else "were"
            self.write_line(
                f"{counted(unfinished, 'file')} without a valid manifest {were} never finished: the messages stayed in "
                "the table."
            )

    def _print(self, selection: Selection, limit: int | None) -> None:
        redacts = get_settings().redact is not None
        for message in islice(selection.read(), limit):
            self.stdout.write(to_json(_redacted(message) if redacts else message))

    def _restore(self, selection: Selection, database: str, options: dict[str, Any]) -> None:
        groups, present = self._choose(selection, database, options["limit"])
        if selection.damaged:
            # What was read of them before that was noticed does not count.
            groups, present = self._choose(selection, database, options["limit"])
        new = groups.total() - present
        # A question needs its context.
        if self.verbosity > 0 or (new and self.is_asking(options)):
            self._describe(groups, present, selection.doubles)
        if options["dry_run"]:
            self.report("This is a dry run: nothing was changed.")
        elif new and self.confirm(f"Restore {counted(new, 'message')} as {options['target']}?", options):
            self._write(selection, groups.total(), database, STATUSES[options["target"]])

    def _choose(self, selection: Selection, database: str, limit: int | None) -> tuple[Groups, int]:
        """Return the messages that were found, and the number of those that are in the table already."""
        groups, present = Groups(), 0
        for batch in batches(islice(selection.read(skip_damaged=True), limit)):
            groups.update((message.type, message.error_class) for message in batch)
            present += len(find_present(batch, database))
            self.show_progress(f"{groups.total():,} found")
        self.show_progress("")
        return groups, present

    def _describe(self, groups: Groups, present: int, doubles: int) -> None:
        lines = [("type", "error class", "messages")]
        for (type, error_class), count in groups.most_common():
            lines.append((type, error_class or "-", f"{count:,}"))
        self._table(lines)
        are = "is" if present == 1 else "are"
        there = f", {present:,} of which {are} in the table already" if present else ""
        self.write_line(f"Found {counted(groups.total(), 'archived message')}{there}.")
        if doubles:
            were = "was" if doubles == 1 else "were"
            self.write_line(f"{counted(doubles, 'further copy', 'further copies')} {were} left out.")

    def _table(self, lines: Sequence[Sequence[str]]) -> None:
        for line in align(lines) if len(lines) > 1 else []:
            self.write_line(line)

    def _write(self, selection: Selection, found: int, database: str, status: Status) -> None:
        total, done = Restored(0, 0, 0), 0
        try:
            for batch in batches(islice(selection.read(skip_damaged=True), found)):
                result = restore(batch, status, using=database)
                total = Restored(*map(sum, zip(total, result, strict=True)))
                done += len(batch)
                self.show_progress(f"{done:,} of {found:,} restored")
        finally:
            self.show_progress("")
            self.report(describe_result(total))


def _filters(options: dict[str, Any]) -> Filters:
    after, before = (
        timezone.now() - time if isinstance(time, datetime.timedelta) else time
        for time in (options["archived_after"], options["archived_before"])
    )
    if after and before and after >= before:
        raise CommandError("--archived-after must be earlier than --archived-before.")
    filters = Filters(
        archived_after=after,
        archived_before=before,
        archives=tuple(options["archive"] or ()),
        reason=options["reason"] or "",
        publisher=options["publisher"],
        types=tuple(options["type"] or ()),
        error_classes=tuple(options["error_class"] or ()),
        key=options["key"],
        message_ids=tuple(map(str, options["message_id"] or ())),
    )
    if options["all"] and filters != Filters():
        raise CommandError("--all cannot be combined with a filter. Leave out either.")
    return filters


def _redacted(message: ArchivedMessage) -> ArchivedMessage:
    """Return a message as `OUTBOX["REDACT"]` shows it, without its version from before an edit."""
    payload, headers = (json.loads(text) if text else None for text in (message.payload, message.headers))
    payload, headers = (json.dumps(each, ensure_ascii=False) for each in redacted(message.type, payload, headers))
    return replace(message, payload=payload, headers=headers, original="null")
