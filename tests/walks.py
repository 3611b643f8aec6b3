"""Follow one message through the package, and print the files that it enters: `python -m tests.walks`.

A file counts once, when one of its functions is called. The work of other threads, such as a relay's reports, is left
out: a reader who follows a message does not open it.
"""

import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import transaction

import django_outbox

PACKAGE = Path(django_outbox.__file__).parent
MEMORY = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
HANDLERS = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}


def main() -> None:
    """Print each walk: its number of files, of calls into another file, and the files in their order."""
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django_outbox"],
        OUTBOX={"PUBLISHERS": {"default": MEMORY, "handlers": HANDLERS}},
        USE_TZ=True,
    )
    django.setup()
    # The package's modules need the settings.
    from django_outbox import enqueue  # noqa: PLC0415
    from django_outbox.handlers import handler  # noqa: PLC0415
    from django_outbox.relay import Relay  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    handler("walked")(lambda payload, message: None)

    def put(publisher: str) -> None:
        with transaction.atomic():
            enqueue("walked", 1, key="k", publisher=publisher)

    def deliver(publisher: str) -> Callable[[], Any]:
        # The first delivery imports, connects and caches.
        put(publisher)
        relay = Relay(publishers=[publisher])
        relay.deliver_once()
        put(publisher)
        return relay.deliver_once

    def status() -> None:
        call_command("outbox_status", stdout=StringIO())

    put("default")
    show("enqueue", lambda: put("default"))
    show("claim, publish and settle", deliver("default"))
    show("claim, call a handler and settle", deliver("handlers"))
    status()
    show("outbox_status", status)


def show(name: str, work: Callable[[], Any]) -> None:
    """Call a function in this thread, and print the files that it enters."""
    files: list[str] = []
    calls = 0
    thread = threading.get_ident()

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        file = Path(frame.f_code.co_filename)
        if event != "call" or threading.get_ident() != thread or not file.is_relative_to(PACKAGE):
            return
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        calls += caller != frame.f_code.co_filename
        path = str(file.relative_to(PACKAGE))
        if path not in files:
            files.append(path)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    sys.stdout.write(f"{name}: {len(files)} files, {calls} calls between files\n  {', '.join(files)}\n")


if __name__ == "__main__":
    main()
