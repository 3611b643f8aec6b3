"""The documentation keeps up with the code: names, settings, examples, and the tutorial as a whole."""

import ast
import configparser
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.core.management import BaseCommand, find_commands, load_command_class
from django.utils.module_loading import import_string

import django_outbox
from django_outbox import conf
from django_outbox.brokers import Consumer
from django_outbox.brokers.aws import SNSPublisher, SQSPublisher
from django_outbox.brokers.celery import CeleryPublisher
from django_outbox.brokers.console import ConsolePublisher
from django_outbox.brokers.http import HTTPPublisher
from django_outbox.brokers.kafka import KafkaConsumer, KafkaPublisher
from django_outbox.brokers.memory import MemoryPublisher
from django_outbox.brokers.nats import JetStreamConsumer, JetStreamPublisher
from django_outbox.brokers.rabbitmq import RabbitMQConsumer, RabbitMQPublisher
from django_outbox.brokers.redis import RedisStreamsConsumer, RedisStreamsPublisher
from django_outbox.brokers.registry import build_publisher
from django_outbox.handlers import HandlersPublisher
from django_outbox.retry import RetryPolicy
from tests.docs.blocks import ROOT, Block, blocks_of
from tests.support.project_files import read_pyproject

PACKAGE = ROOT / "django_outbox"
REFERENCE = ROOT / "docs" / "reference"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = find_commands(str(PACKAGE / "management"))
INBOX_COMMANDS = find_commands(str(PACKAGE / "inbox" / "management"))
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


def documented_defaults() -> dict[str, str]:
    """Return the default of each setting that has a heading of its own, by its target: `setting-retry-delay`."""
    entries = re.findall(
        r"^\((setting-[a-z-]+)\)=\n### (\w+)\n\n\*Default:\* `(.+?)`\\\n", reference("settings"), re.MULTILINE
    )
    for target, name, _ in entries:
        assert target.endswith(f"-{name.lower().replace('_', '-')}"), f"the target {target} is not that of {name}"
    return {target: default for target, _, default in entries}


def documented_options(section: str) -> dict[str, str]:
    """Return the options in the tables of a section, with their defaults: "required" or an expression."""
    table = "".join(re.findall(r"^\| option \| default \|.*\n((?:\|.*\n)+)", section, re.MULTILINE))
    rows = re.findall(r"^\| \[?`(\w+)`(?:\]\{[^}]+\})? \| ([^|]+) \|", table, re.MULTILINE)
    return {name: default.split("`")[1] if "`" in default else default for name, default in rows}


def target_of(name: str, prefix: str = "setting") -> str:
    return f"{prefix}-{name.replace('_', '-')}"


def check_ids() -> set[str]:
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    return set(re.findall(r'(?:"|django_outbox\.)([EWI]\d{3})"', source))


def flags(command: str) -> set[str]:
    """The flags of a command that not every command of Django has."""
    app = "django_outbox.inbox" if command in INBOX_COMMANDS else "django_outbox"
    parser = load_command_class(app, command).create_parser("manage.py", command)
    plain = BaseCommand().create_parser("manage.py", "plain")
    return set(parser._option_string_actions) - set(plain._option_string_actions)


def test_every_setting_is_in_the_reference_with_its_default():
    documented = documented_defaults()
    defaults = conf.OutboxSettings(publishers={})
    for name in inspect.signature(conf.OutboxSettings).parameters:
        if name in ("publishers", "retry", "consumers"):
            assert f"({target_of(name)})=\n## {name.upper()}\n" in reference("settings")
        else:
            assert target_of(name) in documented, f"OUTBOX[{name.upper()!r}] is not in docs/reference/settings.md"
            value = eval(documented[target_of(name)], {"timedelta": timedelta})
            default = getattr(defaults, name)
            assert value == default, f"the default of {name.upper()} is {default!r}"


def test_every_key_of_the_retry_policy_is_in_the_reference_with_its_default():
    documented = documented_defaults()
    for name, parameter in inspect.signature(RetryPolicy).parameters.items():
        assert target_of(name, "setting-retry") in documented, name
        assert eval(documented[target_of(name, "setting-retry")]) == parameter.default


def test_every_setting_that_is_read_is_a_field_of_the_settings():
    assert {name.lower() for name in conf.readers_of(conf.OutboxSettings)} | {"publishers"} == set(
        inspect.signature(conf.OutboxSettings).parameters
    )


@pytest.mark.parametrize(
    ("publisher", "page"),
    [
        (RabbitMQPublisher, "how-to/rabbitmq"),
        (KafkaPublisher, "how-to/kafka"),
        (RedisStreamsPublisher, "how-to/redis"),
        (SQSPublisher, "how-to/aws"),
        (SNSPublisher, "how-to/aws"),
        (JetStreamPublisher, "how-to/nats"),
        (HTTPPublisher, "how-to/webhooks"),
        (HandlersPublisher, "how-to/handlers"),
        (CeleryPublisher, "how-to/celery"),
        (ConsolePublisher, "reference/publishers"),
        (MemoryPublisher, "reference/publishers"),
    ],
)
def test_every_option_of_a_publisher_is_on_its_page_with_its_default(publisher: type, page: str):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    section = re.search(rf"^## {publisher.__name__}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = documented_options(section[1])
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(publisher).parameters.items()
        if name not in ("alias", "options")
    }
    assert documented.keys() == parameters.keys()
    for name, default in documented.items():
        assert default == "required" or eval(default) == parameters[name].default, name


@pytest.mark.parametrize(
    ("title", "consumer"),
    [
        ("RabbitMQConsumer", RabbitMQConsumer),
        ("KafkaConsumer", KafkaConsumer),
        ("RedisStreamsConsumer", RedisStreamsConsumer),
        ("JetStreamConsumer", JetStreamConsumer),
        ("Options of every consumer", Consumer),
    ],
)
def test_every_option_of_a_consumer_is_in_the_reference_with_its_default(title: str, consumer: type):
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", reference("consumers"), re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = documented_options(section[1])
    common = {"alias"} if consumer is Consumer else inspect.signature(Consumer).parameters.keys()
    parameters = {
        name: parameter for name, parameter in inspect.signature(consumer).parameters.items() if name not in common
    }
    assert documented.keys() == parameters.keys()
    for name, default in documented.items():
        assert default == "required" or eval(default) == parameters[name].default, name


def test_every_system_check_is_in_the_reference_and_no_other():
    entries = re.findall(r"^\| \[(\w+)\]\{#check-(\w+)\} \| ", reference("checks"), re.MULTILINE)
    assert [target.upper() for _, target in entries] == [name for name, _ in entries]
    assert check_ids() == {name for name, _ in entries}


def test_every_public_name_is_in_the_reference():
    text = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    for name in django_outbox.__all__:
        assert re.search(rf"django_outbox\.(\w+\.)*{name}\b", text), name


def test_the_docstring_of_enqueue_describes_every_argument():
    for function in (django_outbox.enqueue, django_outbox.enqueue_many):
        for name in inspect.signature(function).parameters:
            assert f"\n    {name}: " in (inspect.getdoc(function) or ""), name


def test_every_field_of_a_message_is_in_the_reference():
    names = [field.name for field in django_outbox.OutboxMessage._meta.fields]
    assert [*rows("messages")][: len(names)] == names


@pytest.mark.parametrize("command", [*COMMANDS, *INBOX_COMMANDS])
def test_every_flag_of_a_command_is_in_the_reference_and_no_other(command: str):
    section = re.split(r"^## ", reference("commands"), flags=re.MULTILINE)
    (text,) = [text for text in section if text.startswith(f"{command}\n")]
    terms = re.findall(r"^\| (`--(?:[^|]|\\\|)+) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(--[\w-]+)", " ".join(terms))) == flags(command)


def test_every_command_is_in_the_reference():
    for app, commands in ((PACKAGE, COMMANDS), (PACKAGE / "inbox", INBOX_COMMANDS)):
        files = (app / "management" / "commands").glob("[!_]*.py")
        assert sorted(file.stem for file in files) == sorted(commands)


def shown_commands() -> Iterator[tuple[str, str, str]]:
    """Each line of a page that runs a command of this app: the page, the command, and what comes after it.

    The `tenant_command` of django-tenants has its own flags after the command.
    """
    line = rf"(?<!tenant_command )\b({'|'.join([*COMMANDS, *INBOX_COMMANDS])})\b(.*)"
    for page in PAGES:
        for command, rest in re.findall(line, page.read_text()):
            if re.search(r'^(["`]?,?) "?--', rest):
                yield page.relative_to(ROOT).as_posix(), command, rest


@pytest.mark.parametrize(("page", "command", "rest"), [*shown_commands()])
def test_a_command_that_a_page_shows_takes_its_flags(page: str, command: str, rest: str):
    known = flags(command)
    for flag in re.findall(r"--[a-z-]+", rest.partition("`")[0]):
        assert flag in known, f"{page}: {command}{rest}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=identify)
def test_an_example_is_yaml(block: Block):
    assert isinstance(yaml.safe_load(block.code), dict)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "ini"], ids=identify)
def test_an_example_is_ini(block: Block):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(block.code)
    assert parser.sections()


@pytest.mark.parametrize(("name", "least"), [("failed-messages", 5), ("relay-log", 12)])
def test_every_text_that_a_guide_quotes_is_one_of_the_code(name: str, least: int):
    source = re.sub(r'"\s*\n?\s*f?"', "", "".join(path.read_text() for path in PACKAGE.rglob("*.py")))
    page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text()
    quoted = re.findall(r"^(?:\| )?`([^`]+)`(?:\n:| \|) ", page, re.MULTILINE)
    quoted = [text for text in quoted if "…" in text or " " in text]
    assert len(quoted) >= least
    for text in quoted:
        for part in filter(None, (part.strip() for part in text.split("…"))):
            assert re.sub(r"%\w|'", "", part) in re.sub(r"%\w|'", "", source), text


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
    monkeypatch.setenv("BILLING_WEBHOOK_SECRET", "whsec_bm90IGEgc2VjcmV0LCBidXQgbG9uZyBlbm91Z2g=")
    outbox = outbox_of(block)
    parsed, problems = conf.parse(outbox)
    assert not problems, problems
    assert parsed is not None
    for alias, config in parsed.publishers.items():
        # The files of the certificates and the Celery apps of the examples do not exist.
        if config.backend.startswith("django_outbox.") and not {"ssl", "app"} & set(config.options):
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
    "path",
    sorted({path for page in PAGES for path in re.findall(r"`(tests/\w+/test_\w+\.py[:\w]*)`", page.read_text())}),
)
def test_a_test_that_the_documentation_names_exists(path: str):
    file, *names = path.split("::")
    assert (ROOT / file).exists(), path
    for name in names:
        assert re.search(rf"^ *(?:def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), path


def test_the_file_for_coding_assistants_has_every_page_and_names_that_exist():
    text = (ROOT / "docs" / "llms.txt").read_text()
    pages = re.findall(r"\]\(([^)]+)\.html\)", text)
    assert sorted(f"docs/{page}.md" for page in pages) == [page.relative_to(ROOT).as_posix() for page in PAGES[1:]]
    commands = set(re.findall(r"manage\.py (\w+box\w*|outbox_\w+)", text))
    assert commands == {*COMMANDS, *INBOX_COMMANDS}
    names = set(re.findall(r"`(django_outbox\.[\w.]+)", text))
    assert len(names) > 10
    for name in names:
        # It needs an app that may be installed only once.
        if "django_tasks" in name:
            assert (PACKAGE / "contrib" / "django_tasks" / "backend.py").read_text().count("class OutboxBackend") == 1
        else:
            import_string(name)
    for setting in re.findall(r'`OUTBOX\["(\w+)"\]', text):
        assert setting in conf.readers_of(conf.OutboxSettings)


def test_the_permissions_of_the_reference_are_those_of_the_model():
    meta = django_outbox.OutboxMessage._meta
    names = {f"view_{meta.model_name}", *(name for name, _ in meta.permissions)}
    assert {row for row in rows("messages") if row.endswith(f"_{meta.model_name}")} == names


def test_the_versions_are_the_same_on_the_home_page_and_in_readme():
    home = (ROOT / "docs" / "index.md").read_text()
    versions = dict(re.findall(r"^\| ([\w, ]+) \| ([\d., to]+?)(?: or newer.*)? \|$", home, re.MULTILINE))
    readme = " ".join((ROOT / "README.md").read_text().split())
    djangos = versions["Django"].split(", ")
    assert f"You need Python {versions['Python']}, Django {djangos[0]} to {djangos[-1]}" in readme
    for name in ("PostgreSQL", "SQLite"):
        assert f"{name} {versions[name]}+" in readme
    classifiers = read_pyproject()["project"]["classifiers"]
    assert [text.rpartition(" ")[2] for text in classifiers if re.search(r"Django :: \d", text)] == djangos
    pythons = [text.rpartition(" ")[2] for text in classifiers if re.search(r"Python :: 3\.", text)]
    assert f"{pythons[0]} to {pythons[-1]}" == versions["Python"]


def test_the_sidebar_lists_every_page_once_below_a_caption():
    """Only the captions of the home page appear in the theme's sidebar."""
    home = (ROOT / "docs" / "index.md").read_text()
    trees = re.findall(r"^```{toctree}\n:hidden:\n:caption: [^\n]+\n\n(.*?)^```$", home, re.MULTILINE | re.DOTALL)
    listed = [f"docs/{name}.md" for tree in trees for name in tree.split()]
    pages = [page.relative_to(ROOT).as_posix() for page in PAGES]
    assert sorted([*listed, "docs/index.md", "README.md"]) == sorted(pages)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *PAGES[1:]], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_to_a_file_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
