"""The console, redirected to a file: hundreds of lines would bury the rest of the demo."""

import json
import uuid
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.test import override_settings

from shop import conf
from shop.destinations import ORDERS, REPORTS, Destination
from shop.terminal import short_path


class ConsoleDestination(Destination):
    """The file of JSON lines that the setting `DEMO_FILE` names."""

    repair_text = f"accept {REPORTS} on the console"

    def __init__(self) -> None:
        self._path = Path(conf.DEMO_FILE)
        self._repaired = override_settings(OUTBOX=_outbox([ORDERS, REPORTS]))
        self._enabled = False
        self.name = f"the console, redirected to {short_path(self._path)}"

    def prepare(self) -> None:
        self._path.write_text("")

    def open_output(self) -> IO[str]:
        return self._path.open("a", encoding="utf-8")

    def repair(self) -> None:
        self._repaired.enable()
        self._enabled = True

    def close(self) -> None:
        if self._enabled:
            self._repaired.disable()

    def read_arrivals(self) -> list[tuple[uuid.UUID, Any]]:
        lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [(uuid.UUID(line["message_id"]), line["payload"]) for line in lines]


def _outbox(types: list[str]) -> dict[str, Any]:
    publisher = {**settings.OUTBOX["PUBLISHERS"]["default"], "OPTIONS": {"types": types}}
    return {**settings.OUTBOX, "PUBLISHERS": {**settings.OUTBOX["PUBLISHERS"], "default": publisher}}
