"""Simplified Chinese keeps up: the README and the catalogue."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation
from django.utils.translation.template import templatize

from django_outbox.models import OutboxMessage
from django_outbox.monitoring.figures import Level
from django_outbox.monitoring.verdicts import judge
from tests.support.admin.overview_figures import a_bad_night

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
CHINESE_README = (ROOT / "README.zh-Hans.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PACKAGE = ROOT / "django_outbox"
CATALOGUE = PACKAGE / "locale" / "zh_Hans" / "LC_MESSAGES" / "django"
IN_TEMPLATE = re.compile(r"""\bn?gettext\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
IN_CATALOGUE = re.compile(r'^msgid (".*")\n(?:msgid_plural ".*"\n)?msgstr(?:\[0\])? (".*")$', re.MULTILINE)
PLACEHOLDER = re.compile(r"%\(\w+\)\w|\{\w+\}")
HOW = "run makemessages -l zh_Hans --no-wrap --no-location in django_outbox, translate, then compilemessages -l zh_Hans"


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


def marked(path: Path) -> Iterator[str]:
    """Yield the strings of a file that are marked for translation; of those with a plural the singular."""
    if path.suffix == ".html":
        yield from map(ast.literal_eval, IN_TEMPLATE.findall(templatize(path.read_text())))
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for call in calls:
        is_mark = re.fullmatch(r"_|n?gettext(_lazy|_noop)?", ast.unparse(call.func))
        # A word that is kept in a variable is marked where it is written.
        if is_mark and isinstance(call.args[0], ast.Constant):
            yield ast.literal_eval(call.args[0])


@pytest.fixture(scope="module")
def source() -> dict[str, str]:
    """The catalogue as it was written: its strings with their translations."""
    text = CATALOGUE.with_suffix(".po").read_text()
    assert "#, fuzzy" not in text, HOW
    return {ast.literal_eval(string): ast.literal_eval(chinese) for string, chinese in IN_CATALOGUE.findall(text)}


def test_every_marked_string_has_a_chinese_translation_and_no_other(source: dict[str, str]):
    files = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".html"}]
    strings = {string for path in files for string in marked(path)}
    assert len(strings) > 300
    assert {string for string, chinese in source.items() if chinese} == strings, HOW


def test_a_translation_has_the_placeholders_of_its_string(source: dict[str, str]):
    for string, chinese in source.items():
        assert sorted(PLACEHOLDER.findall(chinese)) == sorted(PLACEHOLDER.findall(string)), string


def test_the_compiled_catalogue_is_the_one_that_was_written(source: dict[str, str]):
    with CATALOGUE.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    different = {
        string
        for string, chinese in source.items()
        if chinese not in {compiled.gettext(string), compiled.ngettext(string, "", 1)}
    }
    assert different == set(), HOW


def test_a_reader_of_chinese_sees_the_model_and_the_verdicts_in_chinese():
    verdicts = judge(a_bad_night())
    with translation.override("zh-hans"):
        assert str(OutboxMessage._meta.verbose_name_plural) == "发件箱消息"
        assert all(re.search(r"[\u4e00-\u9fff].*。$", verdict.sentence) for verdict in verdicts)
    assert verdicts[0].level is Level.CRITICAL
