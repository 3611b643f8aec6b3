"""The documentation keeps up with the code: names, settings, examples, and the tutorial as a whole."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.core.management import BaseCommand, load_command_class

import django_outbox
from django_outbox import conf
from django_outbox.publishers import build_publisher
from django_outbox.publishers.console import ConsolePublisher
from django_outbox.publishers.memory import MemoryPublisher
from django_outbox.publishers.rabbitmq import RabbitMQPublisher
from django_outbox.retry import RetryPolicy

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_outbox"
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


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


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def identify(block: Block) -> str:
    return f"{block.page}:{block.code.splitlines()[0]}"


def reference(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


def rows(name: str) -> dict[str, list[str]]:
    """The tables of a page of the reference: the cells of each row, by the code in its first one."""
    found = {}
    for line in reference(name).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        code = re.match(r"`([^`]+)`", cells[0]) if cells else None
        if code:
            found[code[1]] = cells[1:]
    return found


def check_ids() -> set[str]:
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    return set(re.findall(r'(?:"|django_outbox\.)([EW]\d{3})"', source))


def run_outbox_flags() -> set[str]:
    parser = load_command_class("django_outbox", "run_outbox").create_parser("manage.py", "run_outbox")
    plain = BaseCommand().create_parser("manage.py", "plain")
    return set(parser._option_string_actions) - set(plain._option_string_actions)


def test_every_setting_is_in_the_reference_with_its_default():
    table = rows("settings")
    for name, default in inspect.signature(conf.OutboxSettings).parameters.items():
        assert name.upper() in table, f"OUTBOX[{name.upper()!r}] is not in docs/reference/settings.md"
        if name not in ("publishers", "retry"):
            value = eval(table[name.upper()][0].strip("`"), {"timedelta": timedelta})
            assert value == default.default, f"the default of {name.upper()} is {default.default!r}"


def test_every_key_of_the_retry_policy_is_in_the_reference_with_its_default():
    table = rows("settings")
    for name, parameter in inspect.signature(RetryPolicy).parameters.items():
        assert name.upper() in table
        assert eval(table[name.upper()][0].strip("`")) == parameter.default


def test_every_setting_that_is_read_is_a_field_of_the_settings():
    assert {name.lower() for name in conf._READERS} | {"publishers"} == set(
        inspect.signature(conf.OutboxSettings).parameters
    )


@pytest.mark.parametrize("publisher", [RabbitMQPublisher, ConsolePublisher, MemoryPublisher])
def test_every_option_of_a_publisher_is_in_the_reference_with_its_default(publisher: type):
    page = reference("publishers")
    assert f"## {publisher.__name__}" in page
    table = rows("publishers")
    for name, parameter in inspect.signature(publisher).parameters.items():
        if name in ("alias", "options"):
            continue
        assert name in table, f"the option {name} is not in docs/reference/publishers.md"
        default = table[name][0].strip("`")
        assert default == "required" or eval(default) == parameter.default, f"{name}: {parameter.default!r}"


def test_every_system_check_is_in_the_reference_and_no_other():
    assert check_ids() == {name.removeprefix("django_outbox.") for name in rows("checks")}


def test_every_public_name_is_in_the_reference():
    text = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    for name in django_outbox.__all__:
        assert re.search(rf"django_outbox\.(\w+\.)*{name}\b", text), name


def test_every_argument_of_enqueue_is_told_in_its_docstring():
    for function in (django_outbox.enqueue, django_outbox.enqueue_many):
        for name in inspect.signature(function).parameters:
            assert f"\n    {name}: " in (inspect.getdoc(function) or ""), name


def test_every_field_of_a_message_is_in_the_reference():
    table = rows("messages")
    names = [field.name for field in django_outbox.OutboxMessage._meta.fields]
    assert list(table)[: len(names)] == names


def test_every_flag_of_run_outbox_is_in_the_reference():
    flags = run_outbox_flags()
    assert "--drain" in flags
    documented = {name.split()[0] for name in rows("commands")}
    assert flags <= documented


def test_every_text_that_the_guide_to_failures_quotes_is_one_of_the_code():
    source = re.sub(r'"\s*\n?\s*f?"', "", "".join(path.read_text() for path in PACKAGE.rglob("*.py")))
    quoted = re.findall(r"^\| `(.+?)`", (ROOT / "docs" / "how-to" / "failures.md").read_text(), re.MULTILINE)
    assert len(quoted) > 8
    for text in quoted:
        for part in filter(None, (part.strip() for part in text.split("…"))):
            assert part in source, text


def test_the_readme_has_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "pip install -r testproject/requirements.txt && python testproject/manage.py demo\n" in readme
    assert "python tests/run.py\n" in readme


@pytest.mark.parametrize("block", PYTHON, ids=identify)
def test_an_example_is_python(block: Block):
    ast.parse(block.code, block.page)


@pytest.mark.parametrize(
    "block", [block for block in PYTHON if re.search("^OUTBOX = ", block.code, re.MULTILINE)], ids=identify
)
def test_an_example_of_the_setting_is_accepted(block: Block, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AMQP_URL", settings.AMQP_URL)
    outbox = outbox_of(block)
    parsed, problems = conf.parse(outbox)
    assert not problems, problems
    assert parsed is not None
    for alias, config in parsed.publishers.items():
        if config.backend.startswith("django_outbox.") and "ssl" not in config.options:
            build_publisher(alias, config)


def outbox_of(block: Block) -> Any:
    """Run the imports and the assignment of OUTBOX, and nothing else of the example."""
    tree = ast.parse(block.code)
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OUTBOX")
    ]
    names: dict[str, Any] = {}
    exec(compile(tree, block.page, "exec"), names)
    return names["OUTBOX"]


@pytest.mark.parametrize(
    "path", sorted({path for page in PAGES for path in re.findall(r"`(tests/test_\w+\.py::\w+)`", page.read_text())})
)
def test_a_test_that_the_documentation_names_exists(path: str):
    file, _, name = path.partition("::")
    assert re.search(rf"def {name}\(", (ROOT / file).read_text()), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_to_a_file_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
