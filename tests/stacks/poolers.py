"""Connection poolers in front of PostgreSQL, each as a process of the test, in transaction mode where it has one."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connections

from tests.streams.test_servers import Server
from tests.support.children import Child, unprivileged, wait_for_answer
from tests.support.ports import free_port

PGBOUNCER = """
[databases]
* = host=127.0.0.1 port={backend}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
server_round_robin = 1
"""

ODYSSEY = """
daemonize no
unix_socket_dir "{folder}"
unix_socket_mode "0644"
log_to_stdout yes
log_format "%p %t %l [%i %s] (%c) %m\\n"
listen {{
    host "127.0.0.1"
    port {port}
}}
storage "postgresql" {{
    type "remote"
    host "127.0.0.1"
    port {backend}
}}
database default {{
    user default {{
        authentication "none"
        storage "postgresql"
        pool "transaction"
        pool_size 20
        pool_reserve_prepared_statement yes
    }}
}}
"""

PGPOOL = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
pcp_socket_dir = '{folder}'
pcp_listen_addresses = ''
pid_file_name = '{folder}/pid'
work_dir = '{folder}'
backend_clustering_mode = 'streaming_replication'
sr_check_user = 'admin'
health_check_period = 0
app_name_redirect_preference_list = 'outbox:primary'
"""


class Pooler:
    """A pooler before a server, and for pgpool-II its standbys, which then get all reads that may be balanced.

    Attributes:
        alias: the alias of the server's database through the pooler.
    """

    def __init__(self, name: str, *servers: Server) -> None:
        program = shutil.which(name) or shutil.which(name, path="/usr/sbin")
        package = {"pgpool": "pgpool2"}.get(name, name)
        assert program, f"{name} is missing; on Debian: apt-get install {package}"
        self.name, self.port = name, free_port()
        self._primary, *standbys = servers
        self._nursery = self._primary.nursery
        self._user = unprivileged("postgres", "nobody")
        folder = self._nursery.directory / f"{name}-{self.port}"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        values = {"port": self.port, "backend": self._primary.port, "folder": folder}
        settings = {"pgbouncer": PGBOUNCER, "odyssey": ODYSSEY, "pgpool": PGPOOL}[name].format(**values)
        for number, server in enumerate(servers if name == "pgpool" else ()):
            weight = int(number > 0 or not standbys)
            settings += f"backend_hostname{number} = '127.0.0.1'\nbackend_port{number} = {server.port}\n"
            settings += f"backend_weight{number} = {weight}\n"
        file = folder / "settings.conf"
        file.write_text(settings)
        (folder / "users.txt").write_text('"admin" ""\n')
        self._command: list[str | Path] = [program, *(["-n", "-D", "-f"] if name == "pgpool" else []), file]
        self._process: Child | None = None
        self.alias = f"{name}_{self.port}"
        known = connections.settings[self._primary.alias]
        connections.settings[self.alias] = {**known, "PORT": self.port, "DISABLE_SERVER_SIDE_CURSORS": True}

    def start(self) -> None:
        self._process = self._nursery.start(self.name, self._command, user=self._user)
        address = f"host=127.0.0.1 port={self.port} user=admin dbname=postgres connect_timeout=5"
        wait_for_answer(self._process, lambda: psycopg.connect(address).close(), 30)

    def stop(self) -> None:
        """Stop it at once, as a supervisor does: pgpool-II ends its sessions by the signal for "fast"."""
        assert self._process
        self._process.send(signal.SIGINT if self.name == "pgpool" else signal.SIGTERM)
        if self._process.wait(10) is None:
            self._process.kill()


@contextmanager
def pooler(name: str, *servers: Server) -> Iterator[Pooler]:
    made = Pooler(name, *servers)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        connections[made.alias].close()
        del connections[made.alias], connections.settings[made.alias]
