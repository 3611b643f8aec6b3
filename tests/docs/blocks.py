"""The fenced blocks of the documentation's pages, and the names that its examples define."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
HOW_TO = ROOT / "docs" / "how-to"


class Block(NamedTuple):
    """A fenced block of a page: its language, its caption if it has one, and its lines."""

    page: str
    language: str
    caption: str
    code: str


def blocks_of(page: Path) -> Iterator[Block]:
    pattern = r"^( *)```(?:\{code-block\} )?(\w+)\n(?:\s*:caption: ([^\n]+)\n\s*\n)?(.*?)^\1```$"
    for found in re.finditer(pattern, page.read_text(), re.MULTILINE | re.DOTALL):
        yield Block(page.relative_to(ROOT).as_posix(), found[2], found[3] or "", textwrap.dedent(found[4]))


def find(guide: str, language: str = "python", caption: str = "") -> list[str]:
    """Return the blocks of a guide in this language, and with this caption if one is given."""
    blocks = [block for block in blocks_of(HOW_TO / f"{guide}.md") if block.language == language]
    return [block.code for block in blocks if caption in ("", block.caption)]


def example(guide: str, defining: str, **names: Any) -> Any:
    """Run the first example of a guide that defines this name, and return what it stands for."""
    code, *_ = [code for code in find(guide) if re.search(rf"^(def|class) {defining}\b", code, re.MULTILINE)]
    exec(compile(code, guide, "exec"), names)
    return names[defining]
