"""The explanation and the glossary: guarantees name their tests, words are defined, pictures fit the page."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PICTURES = [DOCS / "_static" / f"{name}.svg" for name in ("flow-wide", "flow-tall", "states")]

WORDS = [
    *(
        "message",
        "type",
        "topic",
        "key",
        "partition",
        "payload",
        "headers",
        "event",
        "publisher",
        "handler",
        "consumer",
    ),
    *("relay", "claim", "settle", "due", "pending", "processed", "failed", "outcome", "deferred", "rejected"),
    *("unavailable", "outage", "unanswered", "blocks", "blocked", "cursor", "sweep", "head", "phase", "stopping"),
    *("publisher_alias", "lock_key", "NOTIFY", "claim timeout", "requeue", "discard", "purge", "dead letter", "wave"),
    *("slot", "lease", "worker", "batch", "attempt", "circuit breaker", "inbox", "outbox", "drain"),
]
"""The project's vocabulary."""


def guarantees() -> tuple[list[str], dict[str, str]]:
    """Return the rows of the guarantees, and the tests of each, by the name of its evidence."""
    page = (DOCS / "explanation" / "guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    text = (DOCS / "explanation" / "evidence.md").read_text()
    evidence = re.findall(r"^\| \[\w+\]\{#evidence-(\w+)\} \| (.+) \|$", text, re.MULTILINE)
    assert len({name for name, _ in evidence}) == len(evidence), "two entries have one name"
    return [row for row in rows if not re.match(r"\| (Guarantee|---) ", row)], dict(evidence)


def test_every_guarantee_names_the_tests_that_would_fail_without_it():
    rows, evidence = guarantees()
    assert len(rows) > 40
    for row in rows:
        (name,) = re.findall(r"\(#evidence-(\w+)\) \|$", row) or [None]
        assert name in evidence, row
        assert re.search(r"`tests/\w+/test_\w+\.py[:\w]*`", evidence[name]), row


def test_all_evidence_belongs_to_a_guarantee():
    rows, evidence = guarantees()
    assert {name for row in rows for name in re.findall(r"\(#evidence-(\w+)\)", row)} == evidence.keys()


def test_the_tables_of_the_guarantees_have_two_columns_so_that_they_fit_a_phone():
    pages = [(DOCS / "explanation" / f"{name}.md").read_text() for name in ("guarantees", "limits", "evidence")]
    for line in "\n".join(page.partition("(tested-versions)=")[0] for page in pages).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, line


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_defines_every_word_of_the_vocabulary(word: str):
    lines = (DOCS / "glossary.md").read_text().splitlines()
    assert word in lines
    following = [line for line in lines[lines.index(word) + 1 :] if line.startswith("    ") or not line]
    assert following[0].strip(), f"{word} has no definition"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_follows_the_theme_of_the_page_and_stands_alone(path: Path):
    text = path.read_text()
    svg = ET.fromstring(text)
    assert {"title", "desc"} <= {element.tag.rpartition("}")[2] for element in svg}
    # A colour outside a variable's default would be the same in light and dark mode.
    assert not re.findall(r"(?:fill|stroke|color)\s*[=:]\s*\"?(?:#|rgb|black|white)", text)
    assert not re.findall(r"(?:href|src|url)\s*[=(]", text)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_the_text_of_a_picture_is_large_enough_to_read(path: Path):
    svg = ET.fromstring(path.read_text())
    shown = 358 if path.stem != "flow-wide" else 736
    scale = shown / float(svg.attrib["viewBox"].split()[2])
    sizes = [float(element.get("font-size", svg.attrib["font-size"])) for element in svg.iter() if element.text]
    assert min(sizes) * scale >= 11
