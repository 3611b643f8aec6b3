"""The files of the checkout, read."""

import re
import sys
from pathlib import Path
from typing import Any

import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent.parent


def read_pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_yaml(path: str) -> Any:
    """Return what a YAML file holds; `path` is relative to the checkout."""
    return yaml.safe_load((ROOT / path).read_text())


def tox_environments() -> set[tuple[str, str]]:
    """Return the pairs of Python and Django in tox.ini, such as ("3.10", "5.2")."""
    found = set()
    for pythons, django in re.findall(
        r"^    py\{([\d,]+)\}-django(\d+)$", (ROOT / "tox.ini").read_text(), re.MULTILINE
    ):
        found |= {(f"3.{python[1:]}", f"{django[0]}.{django[1:]}") for python in pythons.split(",")}
    return found
