"""Every public name, source, command and setting has exactly one tier."""

import re
from collections.abc import Iterator

import pytest

from django_outbox import conf
from django_outbox.brokers.registry import SHIPPED
from tests.docs.test_pages import COMMANDS, INBOX_COMMANDS, flags
from tests.project import public_api
from tests.support.project_files import ROOT

PAGE = (ROOT / "docs" / "reference" / "tiers.md").read_text()
TIERS = ("stable", "provisional", "experimental")


def tiers_of(*sections: str) -> dict[str, str]:
    """Return the tier of each entry in the tables of some sections; an entry that is there twice fails."""
    found: dict[str, str] = {}
    for section in sections:
        _, _, text = PAGE.partition(f"\n## {section}\n")
        for tier, entries in re.findall(r"^\| \*(\w+)\* \| ([^|]*) \|", text.partition("\n## ")[0], re.MULTILINE):
            assert tier in TIERS
            for entry in re.findall(r"`([^`]+)`", entries):
                assert entry not in found, f"{entry} has two tiers"
                found[entry] = tier
    return found


NAMES = tiers_of("Public API", "Brokers")


def public_names() -> Iterator[str]:
    for module in public_api.MODULES:
        yield from (f"{module}.{name}" for name in public_api.exported(module))


@pytest.mark.parametrize("name", [*public_names()])
def test_a_public_name_has_a_tier(name: str):
    assert name in NAMES or name.rpartition(".")[0] in NAMES


def test_what_has_a_tier_is_public():
    assert NAMES.keys() - {*public_api.MODULES, *public_names()} == set()


@pytest.mark.parametrize("path", SHIPPED)
def test_a_publisher_or_consumer_has_a_tier(path: str):
    assert path in NAMES or path.rpartition(".")[0] in NAMES


def test_a_name_that_two_modules_export_has_one_tier():
    for module in public_api.MODULES:
        for name in public_api.exported(module):
            home, _ = public_api.find(module, name)
            if home != module and home in public_api.MODULES:
                here, there = (NAMES.get(f"{place}.{name}", NAMES[place]) for place in (module, home))
                assert here == there, f"{module}.{name}, {home}.{name}"


def test_every_source_has_a_tier():
    assert tiers_of("Sources").keys() == set(conf.SOURCES)


def test_every_command_has_a_tier():
    found = tiers_of("Commands")
    assert {entry for entry in found if " " not in entry} == {*COMMANDS, *INBOX_COMMANDS}
    for command, flag in (entry.split() for entry in found if " " in entry):
        assert flag in flags(command)


def test_every_setting_has_a_tier():
    of_publishers = {"RATE_LIMIT"}
    assert tiers_of("Settings").keys() - of_publishers == {name.upper() for name in conf.OutboxSettings.__annotations__}


def test_every_tier_states_what_an_upgrade_may_change():
    promises = dict(re.findall(r"^\| \*(\w+)\* \| (.+) \|$", PAGE.partition("\n## ")[0], re.MULTILINE))
    assert tuple(promises) == TIERS
