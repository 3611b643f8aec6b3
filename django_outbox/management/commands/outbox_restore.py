"""`manage.py outbox_restore`: bring messages of an archive back."""

import uuid
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.management.base import OutboxCommand
from django_outbox.models import Status
from django_outbox.retention.archive.restoring import read_messages, restore
from django_outbox.retention.archive.storage import ArchiveStorage, InvalidArchive
from django_outbox.utils.text import counted

MAX_IDS = 1000
"""Maximum number of message ids: their messages are written in one transaction."""

STATUSES = {"failed": Status.FAILED, "pending": Status.PENDING}


class Command(OutboxCommand):
    help = (
        "Bring back messages that were archived before they were purged or discarded.\n"
        "They keep their message_id. One that is in the table already is left alone."
    )
    examples = """
  manage.py outbox_restore --as failed FILE 01978f2c7d4e7c558c7e30a1f8f5a9d1
  manage.py outbox_restore --as pending FILE 01978f2c7d4e7c558c7e30a1f8f5a9d1
"""

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_database_argument(parser)
        parser.add_argument(
            "--as",
            dest="target",
            choices=STATUSES,
            required=True,
            help="failed: to look at and requeue; pending: to be delivered again.",
        )
        parser.add_argument(
            "file", metavar="FILE", help="A file of the archive, with its folders, as in the log and in its manifest."
        )
        parser.add_argument(
            "message_ids",
            metavar="MESSAGE_ID",
            type=uuid.UUID,
            nargs="+",
            help=f"The messages to restore; at most {MAX_IDS:,}.",
        )
        self.add_reason_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        database = self.get_database(options)
        ids = dict.fromkeys(options["message_ids"])
        if len(ids) > MAX_IDS:
            raise CommandError(
                f"MESSAGE_ID: {len(ids):,} ids were given, and at most {MAX_IDS:,} are restored at a time. "
                f"Divide them with xargs -n {MAX_IDS}."
            )
        config = get_settings().archive
        if config is None:
            raise CommandError(
                'There is no archive. Set OUTBOX["ARCHIVE"], for example to {"storage": "outbox_archive"}.'
            )
        try:
            found = read_messages(ArchiveStorage(config.storage, database), options["file"], ids)
        except (ArchiveUnavailable, InvalidArchive) as error:
            raise CommandError(f"FILE: {error}") from error
        present_ids = {message.message_id for message in found}
        absent = [id for id in ids if id not in present_ids]
        restored = restore(found, STATUSES[options["target"]], using=database)
        if restored:
            self.record(
                database, f"--as {options['target']} {options['file']}", count=restored, reason=options["reason"]
            )
        self.report(f"{counted(restored, 'message')} restored as {options['target']}.")
        if present := len(found) - restored:
            were = "was" if present == 1 else "were"
            self.report(f"{counted(present, 'message')} {were} in the table already and {were} left alone.")
        for id in absent:
            self.stderr.write(f"{id} is not in the file.")
        if absent:
            raise CommandError(f"{counted(len(absent), 'message')} not restored.")
