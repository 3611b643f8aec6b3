"""A process that runs an inbox, and hangs at a point of its third batch."""

RUN_INBOX = """
import json, os, sys, threading
from tests import settings
alias, name, outbox, point, *flags = sys.argv[1:]
settings.DATABASES[alias]["NAME"] = name
settings.OUTBOX = json.loads(outbox)

import django
django.setup()
from django.utils.module_loading import import_string
from django_outbox.inbox.storing import InboxWriter

def hang():
    print("here", flush=True)
    threading.Event().wait()

Backend = import_string(settings.OUTBOX["CONSUMERS"]["billing"]["BACKEND"])
insert, settle = InboxWriter._insert, Backend.settle
batches = 0

def insert_and_hang(self, *arguments):
    from django.db import transaction
    global batches
    batches += 1
    if batches < 3 or point != "inside":
        return insert(self, *arguments)
    with transaction.atomic(using=alias):
        insert(self, *arguments)
        hang()

def settle_and_hang(self, *arguments):
    if batches >= 3 and point == "committed":
        hang()
    settle(self, *arguments)
    if batches >= 3 and point == "settled":
        hang()

InboxWriter._insert, Backend.settle = insert_and_hang, settle_and_hang

from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "run_inbox", "--database", alias, *flags])
"""
"""The arguments are the database alias and its name, OUTBOX as JSON, the point, and options of `run_inbox`."""

FORK_INBOXES = """
import json, os, signal, sys, time
from tests import settings
alias, name, outbox = sys.argv[1:]
settings.DATABASES[alias]["NAME"] = name
settings.OUTBOX = json.loads(outbox)

import django
django.setup()
from django.core.management import execute_from_command_line
from django_outbox.inbox.storing import InboxWriter

def store_slowly(self, batch, store=InboxWriter.store):
    time.sleep(0.05)
    return store(self, batch)

InboxWriter.store = store_slowly
members = set()
for line in sys.stdin:
    if line.strip() == "start":
        if (pid := os.fork()) == 0:
            os.close(0)
            execute_from_command_line(["manage.py", "run_inbox", "--database", alias])
            os._exit(0)
        members.add(pid)
        print(pid, flush=True)
    else:
        os.kill(int(line), signal.SIGKILL)
        os.waitpid(int(line), 0)
        members.remove(int(line))
        print("killed", flush=True)
for pid in members:
    os.kill(pid, signal.SIGKILL)
"""
"""Starts processes that run an inbox, one for each line `start`, and prints its number, which as a line kills it.

They are forked, because Python and Django take a second to start, and slow, so that most have a batch in hand. All are
killed when the input ends. The arguments are the database alias and its name, and OUTBOX as JSON.
"""
