"""The package's logger. Nothing that is logged can harm the log or its caller."""

import logging
import sys
from typing import TYPE_CHECKING, Any

from django_outbox.text import is_interrupt, one_line, stand_in

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class OutboxLogger(_Adapter):
    """Logs as `logging.getLogger("django_outbox")` does, with three promises.

    `one_line` puts strings and exceptions among the arguments on one line; a traceback shows no more of an error's text
    than that; and a handler or formatter that raises does not affect deliveries.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, with the arguments of `logging.Logger.log`."""
        if not self.isEnabledFor(level):
            return
        try:
            error = _exception(kwargs.get("exc_info"))
            if error is not None:
                kwargs["exc_info"] = stand_in(error)
            # The caller's frame logs, not this one.
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, msg, *map(_harmless, args), **kwargs)
        except BaseException as raised:
            # If logging fails, there is nowhere to report that.
            if is_interrupt(raised):
                raise


logger = OutboxLogger(logging.getLogger("django_outbox"), {})


def _harmless(argument: object) -> object:
    return one_line(argument) if isinstance(argument, str | BaseException) else argument


def _exception(exc_info: object) -> BaseException | None:
    """Return the exception that an `exc_info` argument means."""
    if isinstance(exc_info, BaseException):
        return exc_info
    return sys.exc_info()[1] if exc_info else None
