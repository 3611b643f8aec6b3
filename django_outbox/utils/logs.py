"""The package's logger. Nothing that is logged can harm the log or its caller."""

import logging
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

from django_outbox.utils.text import one_line, raise_interrupt, stand_in

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


ARGUMENTS = ("exc_info", "stack_info", "stacklevel", "extra")
"""The keyword arguments of `logging.Logger.log`."""

SUBJECT = re.compile(r"(Publisher|Consumer|Database) ['\"](.*?)['\"]")
"""The name of what a line is about."""


class OutboxLogger(_Adapter):
    """Logs as `logging.getLogger("django_outbox")` does, with three promises.

    `one_line` puts strings and exceptions among the arguments on one line; a traceback shows no more of an error's text
    than that; and a handler or formatter that raises does not affect deliveries.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, with the arguments of `logging.Logger.log`.

        Other keyword arguments are the fields of the record for machines. A placeholder such as `%(reason)s` shows one
        of them, whole numbers with thousands separators. Each line has an `event`; docs/reference has all of them. A
        `subject`, such as "Publisher 'default'", becomes the field `publisher`.
        """
        if not self.isEnabledFor(level):
            return
        try:
            # An outage mostly concerns all schemas, and is logged once.
            if (schema := getattr(_thread, "schema", "")) and not str(kwargs.get("event")).startswith("outage."):
                kwargs["schema"] = schema
                msg = f"Schema {one_line(schema)!r}: ".replace("%", "%%" if args or "%(" in str(msg) else "%") + str(
                    msg
                )
            if given := kwargs.get("exc_info"):
                error = given if isinstance(given, BaseException) else sys.exc_info()[1]
                kwargs["exc_info"] = error and stand_in(error)
            fields = {name: kwargs.pop(name) for name in [*kwargs] if name not in ARGUMENTS}
            if not args and "%(" in str(msg):
                args = ({name: _shown(value) for name, value in fields.items()},)
            if subject := SUBJECT.match(fields.pop("subject", "")):
                fields[subject[1].lower()] = subject[2]
            kwargs["extra"] = {name: _harmless(value) for name, value in fields.items()}
            # The caller's frame logs, not this one.
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, msg, *map(_harmless, args), **kwargs)
        except BaseException as raised:
            # If logging fails, there is nowhere to report that.
            raise_interrupt(raised)


def name_schema(schema: str) -> None:
    """Name a tenant's schema in the lines of this thread from now on."""
    _thread.schema = schema


_thread = threading.local()

logger = OutboxLogger(logging.getLogger("django_outbox"), {})


class _Number(int):
    def __str__(self) -> str:
        return f"{self:,}"


def _harmless(argument: object) -> object:
    return one_line(argument) if isinstance(argument, str | BaseException) else argument


def _shown(value: object) -> object:
    return _Number(value) if type(value) is int else _harmless(value)
