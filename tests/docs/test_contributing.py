"""CONTRIBUTING.md is short, its map is complete, and the files that it and its pages name are the right ones."""

import re
from itertools import chain

import pytest

from tests.support.project_files import ROOT

GUIDE = ROOT / "CONTRIBUTING.md"
MAX_LINES = 120
"""What a first contributor reads."""

PAGES = [GUIDE, *sorted((ROOT / "docs" / "contributing").glob("*.md"))]


def map_of(folder: str) -> list[str]:
    """Return the folders in the first column of a table of CONTRIBUTING.md."""
    _, _, table = GUIDE.read_text().partition(f"| `{folder}/` |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [*chain.from_iterable(re.findall(r"`(\w+)/`", row.split("|")[1]) for row in rows)]


def test_a_first_contributor_reads_a_short_guide():
    assert len(GUIDE.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("folder", ["django_outbox", "tests"])
def test_every_folder_is_on_the_map_once(folder: str):
    folders = {path.name for path in (ROOT / folder).iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(map_of(folder)) == sorted(folders)


def test_every_page_of_the_folder_is_linked():
    linked = set(re.findall(r"\]\((docs/contributing/[\w-]+\.md)", GUIDE.read_text()))
    assert linked == {path.relative_to(ROOT).as_posix() for path in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_a_page_names_exists(page):
    named = set(re.findall(r"`((?:django_outbox|tests|docs|testproject|\.github|\.ci)/[^`*\s]*)`", page.read_text()))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_name_is_in_the_file_in_which_a_page_places_it():
    found = [placed for page in PAGES for placed in re.findall(r"`(\w+)` in\s+`([\w/]+\.py)`", page.read_text())]
    assert len(found) >= 4
    for name, path in found:
        assert re.search(rf"^{name}\b", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"
