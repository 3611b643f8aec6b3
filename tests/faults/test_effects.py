"""Relays are killed while they call handlers, at each point of a batch and at any time: each effect exists once."""

import re
import subprocess
import sys

import pytest

from tests.faults.effects.__main__ import DATABASES
from tests.faults.effects.deaths import POINTS
from tests.support.children import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_each_effect_exists_once_although_relays_are_killed_at_each_point_of_a_batch(database: str):
    options = ["--database", database, "--messages", "100", "--kills", str(len(POINTS))]
    command = [sys.executable, "-m", "tests.faults.effects", *options]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    for point in POINTS:
        assert re.search(rf"\d {point}[,)]", found.stdout)
    assert "0 effects missing, 0 twice, 0 of no message, 0 out of order, 0 messages not processed" in found.stdout
