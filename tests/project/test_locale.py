"""The German translation is complete."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation
from django.utils.translation.template import templatize

import django_outbox
from django_outbox.models import OutboxMessage

PACKAGE = Path(django_outbox.__file__).parent
CATALOGUE = PACKAGE / "locale" / "de" / "LC_MESSAGES" / "django.mo"
SINGULAR = {"_", "gettext", "gettext_lazy"}
PLURAL = {"ngettext", "ngettext_lazy"}
IN_TEMPLATE = re.compile(r"""(n?gettext)\(u?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
FILES = sorted(
    path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".html"} and "migrations" not in path.parts
)


class Untranslated(gettext.NullTranslations):
    """Raise an error for a string that the catalogue lacks."""

    def gettext(self, message: str) -> str:
        raise LookupError(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        raise LookupError(msgid1)


def marked(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the strings of a file that are marked for translation, each with the marking function."""
    if path.suffix == ".html":
        for function, literal in IN_TEMPLATE.findall(templatize(path.read_text())):
            yield function, ast.literal_eval(literal)
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SINGULAR | PLURAL:
            yield node.func.id, ast.literal_eval(node.args[0])


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in FILES])
def test_every_marked_string_is_in_the_compiled_german_catalogue(path):
    """If it fails, run `makemessages -l de`, translate, and run `compilemessages -l de`, in `django_outbox`."""
    with CATALOGUE.open("rb") as file:
        german = gettext.GNUTranslations(file)
    german.add_fallback(Untranslated())
    missing = []
    for function, string in marked(path):
        try:
            german.ngettext(string, "", 1) if function in PLURAL else german.gettext(string)
        except LookupError:
            missing.append(string)
    assert missing == []


def test_a_german_reader_sees_german():
    with translation.override("de"):
        assert str(OutboxMessage._meta.verbose_name_plural) == "ausgehende Nachrichten"
