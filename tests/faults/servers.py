"""Databases of the suite's own, in its temporary directory and on free ports: made, broken, and gone in the end."""

import abc
import os
import pwd
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import MySQLdb
import psycopg

from tests.support.children import Child, Nursery, SuiteError, find_program, unprivileged, wait_until

START_PATIENCE = 60
"""Seconds that a server may take until it answers, recovery included."""

STOP_PATIENCE = 60
"""Seconds that a server may take until it has stopped."""

TABLE = "django_outbox_outboxmessage"

DATABASE = "outbox"


class DatabaseServer(abc.ABC):
    """A database server in its own process, as the suite starts and asks it.

    Attributes:
        vendor: what `--database` calls it.
        undelivered: SQL condition of the messages that are not delivered and have not failed.
        seconds: SQL of a time of the table in seconds since 1970.
        stop_signal: how an administrator stops it.
    """

    vendor: str
    undelivered = "available_at IS NOT NULL"
    seconds: str
    stop_signal: signal.Signals
    command: Sequence[str | Path]

    def __init__(self, nursery: Nursery, *users: str) -> None:
        self.nursery = nursery
        self.user = unprivileged(*users)
        self.port = nursery.port(self.vendor)
        self.home = nursery.directory / f"{self.vendor}-{self.port}"
        self.home.mkdir(mode=0o700, exist_ok=True)
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(self.home, entry.pw_uid, entry.pw_gid)
        self._process: Child | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""

        def answers() -> bool:
            if self._process is None or self._process.code is not None:
                # After a crash of PostgreSQL, the memory is in use until the last orphan is gone.
                self._process = self.nursery.start(self.vendor, self.command, user=self.user)
            self.connect().close()
            return True

        wait_until(answers, START_PATIENCE, f"an answer of {self.vendor} at port {self.port}")

    def prepare(self) -> None:
        """Make the users and the database, unless they exist."""

    @abc.abstractmethod
    def url(self, user: str, port: int | None = None) -> str:
        """Return the URL for a user: `relay`, `writer` or `admin`; with a port it is that of a proxy."""

    @abc.abstractmethod
    def connect(self, *, autocommit: bool = True) -> Any:
        """Return a DB-API connection as the administrator."""

    @abc.abstractmethod
    def version(self) -> str:
        """Return its name and version."""

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator and return its rows."""
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    @abc.abstractmethod
    def end_backends(self, user: str, limit: int | None = None) -> None:
        """End connections of a user, all by default."""

    @abc.abstractmethod
    def limit(self, user: str, *, reset: bool = False) -> None:
        """Limit the time of new sessions' statements and transactions to milliseconds, or end these limits.

        Args:
            user: whose sessions are limited, where a server can limit those of one user.
        """

    @property
    def process(self) -> Child:
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """Stop it as an administrator does."""
        self.process.send(self.stop_signal)
        if self.process.wait(STOP_PATIENCE) is None:
            raise SuiteError(f"{self.vendor} did not shut down within {STOP_PATIENCE} s")

    def restart(self) -> None:
        """Stop it as an administrator does, and start it again."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill it, and start it again: it has to recover."""
        self.process.kill()
        self.start()


def find_postgres() -> Path:
    """Return the folder of the programs of PostgreSQL."""
    return Path(find_program("postgres", "usr/lib/postgresql/*/bin")).parent


class PostgreSQL(DatabaseServer):
    """A cluster with `fsync` off: what was committed survives a kill of the processes, not one of the machine.

    Args:
        programs: the folder of the programs; by default that of the newest version.
    """

    vendor = "postgresql"
    undelivered = """(available_at IS NOT NULL OR processed_at IS NULL AND failed_at IS NULL AND NOT EXISTS (
        SELECT FROM django_outbox_streamposition position
        WHERE position.publisher = django_outbox_outboxmessage.publisher
            AND (
                pg_visible_in_snapshot(django_outbox_outboxmessage.xid, passed::pg_snapshot)
                OR django_outbox_outboxmessage.id <= page_end
                AND pg_visible_in_snapshot(django_outbox_outboxmessage.xid, nullif(page, '')::pg_snapshot)
            )
    ))"""
    seconds = "extract(epoch FROM {})"
    # "Fast": transactions are rolled back, connections ended.
    stop_signal = signal.SIGINT

    def __init__(self, nursery: Nursery, programs: Path | None = None, /, **settings: str) -> None:
        super().__init__(nursery, "postgres", "nobody")
        self.programs = programs or find_postgres()
        given = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 80,
            "shared_buffers": "128MB",
            "deadlock_timeout": "200ms",
            "log_checkpoints": "off",
            "wal_level": "logical",
            **settings,
        }
        options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        self.command = [self.programs / "postgres", "-D", self.home, *options]
        self._database = "postgres"

    def run(self, program: str, *arguments: object) -> None:
        """Run one of the programs of PostgreSQL."""
        command: list[str | Path] = [self.programs / program, *map(str, arguments)]
        self.nursery.run(command, user=self.user, directory=self.home)

    def make(self) -> None:
        """Make the cluster, which `start` does if there is none."""
        self.run("initdb", "-D", self.home, "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-locale", "-kN")

    def start(self) -> None:
        if not any(self.home.iterdir()):
            self.make()
        super().start()

    def prepare(self) -> None:
        if not self.rows("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]):
            for statement in (
                "CREATE ROLE relay LOGIN SUPERUSER",
                "CREATE ROLE writer LOGIN SUPERUSER",
                f"CREATE DATABASE {DATABASE}",
            ):
                self.rows(statement)
        self._database = DATABASE

    def publish(self) -> None:
        """Let relays read the messages from the log."""
        self.rows(f"CREATE PUBLICATION django_outbox FOR TABLE {TABLE} WITH (publish = 'insert')")

    def url(self, user: str, port: int | None = None) -> str:
        return f"postgres://{user}@127.0.0.1:{port or self.port}/{DATABASE}"

    def connect(self, *, autocommit: bool = True) -> Any:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "dbname": self._database}
        return psycopg.connect(**address, user="admin", autocommit=autocommit, connect_timeout=5)

    def version(self) -> str:
        return f"PostgreSQL {self.rows('SHOW server_version')[0][0].split()[0]}"

    def end_backends(self, user: str, limit: int | None = None) -> None:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s ORDER BY random() LIMIT %s"
        self.rows(sql, [user, limit])

    def limit(self, user: str, *, reset: bool = False) -> None:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            self.rows(f"ALTER ROLE {user} " + (f"RESET {name}" if reset else f"SET {name} = '30ms'"))


class MariaDB(DatabaseServer):
    """A server that writes its log at each commit and lets the system flush it: it survives a kill, as above."""

    vendor = "mariadb"
    seconds = "unix_timestamp({}) + timestampdiff(SECOND, utc_timestamp(), now())"
    stop_signal = signal.SIGTERM

    INIT = "".join(
        f"CREATE USER IF NOT EXISTS {user}@{host};\nGRANT ALL ON *.* TO {user}@{host} WITH GRANT OPTION;\n"
        for user in ("relay", "writer", "admin")
        for host in ("localhost", "'127.0.0.1'")
    )

    def __init__(self, nursery: Nursery, *options: str) -> None:
        super().__init__(nursery, "mysql", "nobody")
        data, init = self.home / "data", self.home / "init.sql"
        # A starting server removes every `#sql*` file of its tmpdir, among them the temporary tables of other servers.
        paths = ("--no-defaults", f"--datadir={data}", f"--tmpdir={self.home}")
        user = f"--user={self.user or pwd.getpwuid(os.geteuid()).pw_name}"
        method = "--auth-root-authentication-method=normal"
        nursery.run([find_program("mariadb-install-db"), *paths, method, "--skip-test-db", user])
        init.write_text(f"{self.INIT}CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n")
        init.chmod(0o644)
        self.command = [
            find_program("mariadbd", "usr/sbin", "usr/libexec"),
            *paths,
            f"--socket={self.home / 'socket'}",
            f"--pid-file={self.home / 'pid'}",
            f"--init-file={init}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=256M",
            "--innodb-flush-log-at-trx-commit=2",
            "--character-set-server=utf8mb4",
            *options,
        ]

    def url(self, user: str, port: int | None = None) -> str:
        return f"mysql://{user}@127.0.0.1:{port or self.port}/{DATABASE}"

    def connect(self, *, autocommit: bool = True) -> Any:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "database": DATABASE, "charset": "utf8mb4"}
        return MySQLdb.connect(**address, user="admin", autocommit=autocommit, connect_timeout=5)

    def version(self) -> str:
        return f"MariaDB {self.rows('SELECT version()')[0][0].split('-')[0]}"

    def end_backends(self, user: str, limit: int | None = None) -> None:
        sql = "SELECT id FROM information_schema.processlist WHERE user = %s ORDER BY rand()"
        for (id,) in self.rows(sql, [user])[:limit]:
            # It may have gone by itself.
            with suppress(MySQLdb.OperationalError):
                self.rows("KILL CONNECTION %s", [id])

    def limit(self, user: str, *, reset: bool = False) -> None:
        self.rows(f"SET GLOBAL max_statement_time = {'DEFAULT' if reset else 0.03}")
        self.rows(f"SET GLOBAL innodb_lock_wait_timeout = {'DEFAULT' if reset else 1}")


SERVERS: dict[str, type[PostgreSQL] | type[MariaDB]] = {kind.vendor: kind for kind in (PostgreSQL, MariaDB)}
