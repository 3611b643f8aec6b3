"""`--help` of each command: its examples work, and its lines fit a terminal."""

import shlex

import pytest
from django.core.management import CommandParser, find_commands, load_command_class

from django_outbox.management.base import OutboxCommand
from tests.support.project_files import ROOT

COMMANDS = find_commands(str(ROOT / "django_outbox" / "management"))


def load(name: str) -> tuple[OutboxCommand, CommandParser]:
    command = load_command_class("django_outbox", name)
    assert isinstance(command, OutboxCommand)
    return command, command.create_parser("manage.py", name)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_are_accepted_and_shown_line_by_line(name: str):
    command, parser = load(name)
    examples = command.examples.strip("\n").splitlines()
    assert len(examples) > 1
    for example in examples:
        script, subcommand, *arguments = shlex.split(example.partition("    ")[0])
        assert (script, subcommand) == ("manage.py", name)
        parser.parse_args(arguments)
    assert "\n".join(["examples:", *examples]) in parser.format_help()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_lines_fit_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, load(name)[1].format_help().splitlines())) <= 80
