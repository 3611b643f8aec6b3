"""A reader who follows a message opens few files."""

import re
import subprocess
import sys

import django

from tests.support.project_files import ROOT

MOST = {
    # On SQLite, Django 5.2 computes the database's default of a column in the INSERT itself, by `db/functions`.
    "enqueue": 8 if django.VERSION >= (6, 0) else 9,
    "claim, publish and settle": 17,
    "claim, publish to RabbitMQ and settle": 22,
    "claim, call a handler and settle": 17,
    "receive from RabbitMQ, store and settle": 14,
    "outbox_status": 13,
}
"""The largest number of files of each walk of `tests.walks`. Lower it when a walk becomes shorter."""


def test_a_message_enters_no_more_files_than_before():
    command = [sys.executable, "-m", "tests.walks"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert not found.returncode, found.stderr
    files = {name: int(count) for name, count in re.findall(r"^(\S.*): (\d+) files", found.stdout, re.MULTILINE)}
    assert files.keys() == MOST.keys()
    assert all(files[name] <= most for name, most in MOST.items()), found.stdout
