"""Payloads and headers as people may see them, by the function in `OUTBOX["REDACT"]`."""

import copy
import json
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from django_outbox.conf import get_settings
from django_outbox.messages import INVALID_TYPE
from django_outbox.utils.logs import logger


class Shown(NamedTuple):
    """Content of a message that may be shown: JSON values."""

    payload: Any
    headers: Any


def redacted(type: str, payload: Any, headers: Any) -> Shown:
    """Return a message's payload and headers as people may see them. If the function fails, nothing can be seen."""
    path = get_settings().redact
    if path is None:
        return Shown(payload, headers)
    try:
        # The function may change what it is given.
        found = import_string(path)(type, copy.deepcopy(payload), copy.deepcopy(headers))
        if not isinstance(found, tuple):
            raise TypeError
        # Plain JSON values, so that showing them cannot fail.
        shown = Shown(*(json.loads(json.dumps(value, cls=DjangoJSONEncoder)) for value in found))
        return _without_content(shown, payload) if type == INVALID_TYPE else shown
    except Exception as error:
        # Its text might quote the content.
        logger.error(
            "OUTBOX['REDACT'] failed for a message of type %(type)r: %(reason)s",
            event="redaction.failed",
            type=type,
            reason=error.__class__.__name__,
        )
        hidden = _("Hidden, because OUTBOX['REDACT'] failed. The log of the server has the reason.")
        return Shown(hidden, hidden)


def _without_content(shown: Shown, payload: Any) -> Shown:
    """Hide body and headers of a message that the inbox could not store, unless the function has changed them.

    They are text in the payload, where a function that hides fields of the payload does not find these.
    """
    if not (isinstance(shown.payload, dict) and isinstance(payload, dict)):
        return shown
    hidden = {name: "…" for name in ("body", "headers") if name in payload and shown.payload.get(name) == payload[name]}
    return shown._replace(payload={**shown.payload, **hidden})
