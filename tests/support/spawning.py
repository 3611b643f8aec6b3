"""Processes on the test databases, forked from one that has no threads and has set up Django.

This module imports nothing that needs Django to be set up.
"""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
# Python and Django take a second of the processor to start.
FORKS.set_forkserver_preload(["tests.support.preloaded"])


@contextmanager
def process(target: str, *args: Any) -> "Iterator[tuple[Any, Connection]]":
    """Run the function at this dotted path in another process, on the same test databases.

    It is called with its end of a pipe and `args`. The process and the other end of the pipe are yielded; a process
    that still runs at the end is killed.
    """
    from django.db import connections  # noqa: PLC0415 - the new process imports this module before Django is set up

    names = {alias: connections[alias].settings_dict["NAME"] for alias in connections}
    here, there = FORKS.Pipe()
    child = FORKS.Process(target=_run, args=(target, names, there, args), daemon=True)
    child.start()
    there.close()
    try:
        yield child, here
    finally:
        child.kill()
        child.join()
        here.close()


def receive(pipe: Connection, seconds: float = 60) -> Any:
    """Return the next object from the process at the other end."""
    assert pipe.poll(seconds), "the process sent nothing"
    return pipe.recv()


def _run(target: str, names: dict[str, str], pipe: Connection, args: tuple[Any, ...]) -> None:
    import django  # noqa: PLC0415
    from django.db import connections  # noqa: PLC0415
    from django.utils.module_loading import import_string  # noqa: PLC0415

    django.setup()
    # A test of the process that has started this one may have added a server.
    for alias in names.keys() & connections.databases.keys():
        connections.databases[alias]["NAME"] = names[alias]
    import_string(target)(pipe, *args)
