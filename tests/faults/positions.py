"""How far a consumer has read, in a file among its journals, for brokers that keep no such position."""

import json
from collections.abc import Mapping
from pathlib import Path

FILE = "positions.json"


class Positions:
    """The numbers of the last messages that were noted, by stream or partition, in the folder of the journals."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._found: dict[str, int] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def __getitem__(self, name: str) -> int:
        return self._found.get(name, 0)

    @property
    def total(self) -> int:
        return sum(self._found.values())

    def note(self, numbers: Mapping[str, int]) -> None:
        self._found.update(numbers)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._found))
        new.replace(self._path)

    def forget(self) -> None:
        """Begin again: the folder may have been used before."""
        self._path.unlink(missing_ok=True)
        self._found = {}
