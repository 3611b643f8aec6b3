"""Simplified Chinese keeps up: the README."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
CHINESE_README = (ROOT / "README.zh-Hans.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def prose(page: str) -> str:
    return BLOCK.sub("", page)


def levels(page: str) -> list[str]:
    return re.findall(r"^(#+) ", prose(page), re.MULTILINE)


def links(page: str) -> list[str]:
    """Return the targets of links and pictures, except those from one language to the other."""
    targets = re.findall(r"\]\(([^)]+)\)", prose(page))
    return sorted(target for target in targets if not target.startswith("README."))


def test_the_chinese_readme_has_the_same_headings():
    assert levels(CHINESE_README) == levels(README)


def test_the_chinese_readme_has_the_same_commands_and_code():
    assert BLOCK.findall(CHINESE_README) == BLOCK.findall(README)
    assert len(BLOCK.findall(README)) > 5


def test_the_chinese_readme_has_the_same_links():
    assert links(CHINESE_README) == links(README)


def test_the_chinese_readme_names_the_same_code_and_versions():
    for pattern in (r"`([^`\n]+)`", r"[A-Za-z]+ \d[\d.]*\+", r"\d+,\d{3}"):
        assert sorted(re.findall(pattern, prose(CHINESE_README))) == sorted(re.findall(pattern, prose(README))), pattern


def test_each_readme_links_to_the_other():
    assert "](README.zh-Hans.md)" in README
    assert "](README.md)" in CHINESE_README
