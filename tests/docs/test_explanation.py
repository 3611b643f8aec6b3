"""The explanation and the glossary: guarantees name their tests, and words are defined."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"

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


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_defines_every_word_of_the_vocabulary(word: str):
    lines = (DOCS / "glossary.md").read_text().splitlines()
    assert word in lines
    following = [line for line in lines[lines.index(word) + 1 :] if line.startswith("    ") or not line]
    assert following[0].strip(), f"{word} has no definition"


def test_the_stacks_have_the_versions_that_their_tests_install():
    table = (DOCS / "explanation" / "evidence.md").read_text()
    common = {"Django", "psycopg[binary]", "pika"}
    for path in (DOCS.parent / "tests/stacks").glob("test_*.py"):
        for name, version in re.findall(r'"([\w\[\]-]+)==([\d.b]+)"', path.read_text()):
            assert name in common or f"{name.partition('[')[0]} {version}" in table, (path.name, name, version)
