"""Relays are composed: no class of theirs inherits from a class with behaviour."""

import ast

import pytest

from tests.project.test_public_api import MODULES, within

VALUES = {"NamedTuple", "enum.Enum", "Exception", "ServiceLimits"}
"""Bases without behaviour."""


@pytest.mark.parametrize(
    "module", [name for name in MODULES if within(name, "django_outbox.relay", "django_outbox.service")]
)
def test_no_class_of_a_relay_inherits_behaviour(module):
    classes = [node for node in ast.walk(ast.parse(MODULES[module].read_text())) if isinstance(node, ast.ClassDef)]
    assert {ast.unparse(base) for each in classes for base in each.bases} <= VALUES
