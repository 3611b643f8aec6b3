"""Settings of a server of MariaDB that a relay cannot change, on servers that have them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import connections
from pytest_django import DjangoDbBlocker

from tests.faults.servers import MariaDB
from tests.support.children import Nursery
from tests.support.ports import free_port

ALIAS = "unusual"

GALERA = Path("/usr/lib/galera/libgalera_smm.so")
"""Comes with Debian's package mariadb-server."""

pytestmark = pytest.mark.slow


@contextmanager
def server(blocker: DjangoDbBlocker, *options: str) -> Iterator[set[str]]:
    """Start a server, and yield the ids of the checks that report something about it."""
    with Nursery() as nursery:
        started = MariaDB(nursery, *options)
        started.start()
        settings = {**connections["mariadb"].settings_dict}
        settings |= {"HOST": "127.0.0.1", "PORT": started.port, "NAME": "outbox", "USER": "relay", "PASSWORD": ""}
        connections.settings[ALIAS] = settings
        try:
            with blocker.unblock():
                yield {str(problem.id).removeprefix("django_outbox.") for problem in run_checks(databases=[ALIAS])}
        finally:
            connections[ALIAS].close()
            del connections[ALIAS], connections.settings[ALIAS]


def test_a_check_finds_a_log_that_takes_no_changes_of_a_relay(django_db_blocker: DjangoDbBlocker):
    options = ("--log-bin=log", "--binlog-format=STATEMENT")
    with server(django_db_blocker, *options) as problems:
        assert "E064" in problems
        assert "I066" not in problems


@pytest.mark.skipif(not GALERA.exists(), reason="Galera is not installed: apt install galera-4")
def test_a_check_finds_a_node_of_a_cluster_with_several_primaries(django_db_blocker: DjangoDbBlocker):
    port = free_port()
    options = (
        "--binlog-format=ROW",
        "--wsrep-on=ON",
        f"--wsrep-provider={GALERA}",
        "--wsrep-cluster-address=gcomm://",
        f"--wsrep-node-address=127.0.0.1:{port}",
        f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{free_port()}",
        "--innodb-autoinc-lock-mode=2",
    )
    with server(django_db_blocker, *options) as problems:
        assert "I066" in problems
        assert "E064" not in problems
