"""Show the log of a command, unless the project has configured logging."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

FORMAT = "%(asctime)s %(levelname)s %(message)s"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
LEVELS = {0: logging.WARNING, 1: logging.INFO}
"""The least level that is shown, by `--verbosity`; beyond these, everything is."""


@contextmanager
def shown_log(verbosity: int) -> Iterator[None]:
    """Write the log of `django_outbox` to standard error until the end of the block.

    If the project has a handler for it (in `LOGGING`, for this logger or the root), that one decides instead. Without
    any, Python would show warnings only, and a relay in a container would be silent until something goes wrong.

    Args:
        verbosity: 0 for warnings and errors, 1 for everything that an operator needs, 2 for every batch.
    """
    log = logging.getLogger("django_outbox")
    if log.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))
    level = log.level
    log.setLevel(LEVELS.get(verbosity, logging.DEBUG))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
