"""PgBouncer on a free port of this machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.db import connections

from tests.support.ports import free_port
from tests.support.waiting import eventually


@contextmanager
def pgbouncer(database: Mapping[str, Any], mode: str) -> Iterator[int]:
    """Run one in front of a database, in the mode `transaction` or `session`, and yield its port."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert program, "pgbouncer is missing; on Debian and Ubuntu: apt-get install pgbouncer"
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configuration, users, log = folder / "pgbouncer.ini", folder / "users.txt", folder / "log"
        password = f" password={database['PASSWORD']}" if database["PASSWORD"] else ""
        configuration.write_text(
            f"[databases]\n* = host={database['HOST'] or '127.0.0.1'} port={database['PORT'] or 5432}{password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {users}\npool_mode = {mode}\nserver_round_robin = 1\n"
        )
        users.write_text(f'"{database["USER"]}" "{database["PASSWORD"]}"\n')
        command = [program, str(configuration)]
        if os.geteuid() == 0:
            # It refuses to run as root.
            command[1:1] = ["-u", "nobody"]
            for path, rights in ((folder, 0o755), (configuration, 0o644), (users, 0o644)):
                path.chmod(rights)
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: _accepts(port, database) or process.poll() is not None, "PgBouncer accepts logins")
            assert process.poll() is None, log.read_text()
            yield port
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def behind_pgbouncer(alias: str, mode: str) -> Iterator[None]:
    """Connect to a database through a pool in this mode."""
    with pgbouncer(connections[alias].settings_dict, mode) as port:
        address = {"HOST": "127.0.0.1", "PORT": str(port), "DISABLE_SERVER_SIDE_CURSORS": True}
        before = {name: connections.settings[alias].get(name) for name in address}
        connections[alias].close()
        for settings in (connections.settings[alias], connections[alias].settings_dict):
            settings.update(address)
        try:
            yield
        finally:
            connections[alias].close()
            for settings in (connections.settings[alias], connections[alias].settings_dict):
                settings.update(before)


def _accepts(port: int, database: Mapping[str, Any]) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user=database["USER"], dbname=database["NAME"]).close()
    except psycopg.OperationalError:
        return False
    return True
