"""Databases of the suite's own, in its temporary directory and on free ports: made, broken, and gone in the end."""

import abc
import os
import pwd
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.children import Child, Nursery, SuiteError, find_program, unprivileged, wait_until
from tests.support.ports import free_port

START_PATIENCE = 60
"""Seconds that a server may take until it answers, recovery included."""

STOP_PATIENCE = 60
"""Seconds that a server may take until it has stopped."""

TABLE = "django_outbox_outboxmessage"

DATABASE = "outbox"
"""The database that a server has from the beginning."""


class DatabaseServer(abc.ABC):
    """A database, as the suite starts and asks it. `vendor` is what `--database` calls it."""

    vendor: str
    undelivered = "available_at IS NOT NULL"
    """SQL condition of the messages that are not delivered and have not failed."""
    port = 0
    """Port on which it listens; 0 for none."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and wait until it answers."""

    @abc.abstractmethod
    def url(self, user: str, port: int | None = None, database: str = DATABASE) -> str:
        """Return the URL for a user: `relay`, `writer` or `admin`; with a port it is that of a proxy."""

    @abc.abstractmethod
    def connect(self, database: str = DATABASE, *, autocommit: bool = True) -> Any:
        """Return a DB-API connection as the administrator."""

    @abc.abstractmethod
    def version(self) -> str:
        """Return its name and version."""

    def rows(self, sql: str, params: Sequence[Any] = (), database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator and return its rows."""
        with closing(self.connect(database)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []


class NetworkServer(DatabaseServer):
    """A database server in its own process; `stop_signal` is how an administrator stops it."""

    stop_signal: signal.Signals
    _process: Child | None = None

    @abc.abstractmethod
    def end_backends(self, user: str, limit: int | None = None) -> int:
        """End connections of a user, all by default, and return how many there were."""

    @abc.abstractmethod
    def limit(self, user: str, *, reset: bool = False) -> None:
        """Limit the time of new sessions' statements and transactions to milliseconds, or end these limits.

        Args:
            user: whose sessions are limited, where a server can limit those of one user.
        """

    def restart(self) -> None:
        """Stop it as an administrator does, and start it again."""
        assert self._process is not None
        self._process.send(self.stop_signal)
        if self._process.wait(STOP_PATIENCE) is None:
            raise SuiteError(f"{self.vendor} did not shut down within {STOP_PATIENCE} s")
        self.start()

    def crash(self) -> None:
        """Kill it, and start it again: it has to recover."""
        assert self._process is not None
        self._process.kill()
        self.start()


class PostgreSQL(NetworkServer):
    """A cluster with `fsync` off: what was committed survives a kill of the processes, not one of the machine."""

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
    # "Fast": transactions are rolled back, connections ended.
    stop_signal = signal.SIGINT

    def __init__(self, nursery: Nursery, **settings: str) -> None:
        self._nursery = nursery
        self._settings = settings
        self._user = unprivileged("postgres", "nobody")
        self._data = owned_directory(nursery.directory / "postgresql", self._user)
        places = "usr/lib/postgresql/*/bin"
        self._program = find_program("postgres", places)
        self.port = free_port()
        nursery.run(
            [
                Path(self._program).with_name("initdb"),
                *("-D", self._data, "-U", "admin", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"),
            ],
            user=self._user,
        )

    def start(self) -> None:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 80,
            "shared_buffers": "128MB",
            "deadlock_timeout": "200ms",
            "log_checkpoints": "off",
            "wal_level": "logical",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

        def answers() -> bool:
            if self._process is None or self._process.code is not None:
                # After a crash the memory is in use until the last orphan is gone.
                self._process = self._nursery.start(
                    "postgresql", [self._program, "-D", self._data, *options], user=self._user
                )
            self.connect("postgres").close()
            return True

        wait_until(answers, START_PATIENCE, f"an answer of PostgreSQL at port {self.port}")

    def prepare(self) -> None:
        """Make the roles and the database."""
        with closing(self.connect("postgres")) as connection:
            for statement in (
                "CREATE ROLE relay LOGIN SUPERUSER",
                "CREATE ROLE writer LOGIN SUPERUSER",
                "CREATE DATABASE outbox",
            ):
                connection.execute(statement)

    def publish(self) -> None:
        """Let relays read the messages from the log."""
        with closing(self.connect()) as connection:
            connection.execute(f"CREATE PUBLICATION django_outbox FOR TABLE {TABLE} WITH (publish = 'insert')")

    def url(self, user: str, port: int | None = None, database: str = DATABASE) -> str:
        return f"postgres://{user}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str = DATABASE, *, autocommit: bool = True) -> Any:
        import psycopg  # noqa: PLC0415 - only where it is installed

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="admin", dbname=database, autocommit=autocommit, connect_timeout=5
        )

    def version(self) -> str:
        return f"PostgreSQL {self.rows('SHOW server_version')[0][0].split()[0]}"

    def end_backends(self, user: str, limit: int | None = None) -> int:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s ORDER BY random() LIMIT %s"
        return len(self.rows(sql, [user, limit]))

    def limit(self, user: str, *, reset: bool = False) -> None:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            self.rows(f"ALTER ROLE {user} " + (f"RESET {name}" if reset else f"SET {name} = '30ms'"))


class MariaDB(NetworkServer):
    """A server that writes its log at each commit and lets the system flush it: it survives a kill, as above."""

    vendor = "mariadb"
    product = "MariaDB"
    stop_signal = signal.SIGTERM
    options: tuple[str, ...] = ()
    """Additional options of the product."""
    statement_limit, least_limit = "max_statement_time", 0.03

    INIT = "".join(
        f"CREATE USER IF NOT EXISTS {user}@{host};\nGRANT ALL ON *.* TO {user}@{host} WITH GRANT OPTION;\n"
        for user in ("relay", "writer", "admin")
        for host in ("localhost", "'127.0.0.1'")
    )

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._user = unprivileged("mysql", "nobody")
        self._home = owned_directory(nursery.directory / self.vendor, self._user)
        self._program = self.find_server()
        self.port = free_port()
        data = self._home / "data"
        nursery.run(self.installation(data))
        init = self._home / "init.sql"
        init.write_text(f"{self.INIT}CREATE DATABASE IF NOT EXISTS outbox CHARACTER SET utf8mb4;\n")
        init.chmod(0o644)
        self._command = [
            self._program,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={self._home / 'socket'}",
            f"--pid-file={self._home / 'pid'}",
            f"--init-file={init}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=256M",
            "--innodb-flush-log-at-trx-commit=2",
            "--character-set-server=utf8mb4",
            *self.options,
            *([f"--user={self._user}"] if self._user else []),
        ]

    def find_server(self) -> str:
        """Return the path of the server's program."""
        return find_program("mariadbd", "usr/sbin", "usr/libexec")

    def installation(self, data: Path) -> list[str]:
        """Return the command that makes the directory of the data."""
        return [
            find_program("mariadb-install-db"),
            *("--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", f"--user={self._user or own_name()}"),
        ]

    def start(self) -> None:
        self._process = process = self._nursery.start(self.vendor, self._command)

        def answers() -> bool:
            if process.code is not None:
                raise SuiteError(f"{self.product} ended with {process.code}:\n{process.tail()}")
            self.connect().close()
            return True

        wait_until(answers, START_PATIENCE, f"an answer of {self.product} at port {self.port}")

    def prepare(self) -> None:
        """Nothing: the init file makes the users and the database."""

    def url(self, user: str, port: int | None = None, database: str = DATABASE) -> str:
        return f"mysql://{user}@127.0.0.1:{port or self.port}/{database}"

    def connect(self, database: str = DATABASE, *, autocommit: bool = True) -> Any:
        import MySQLdb  # noqa: PLC0415 - only where it is installed

        return MySQLdb.connect(
            host="127.0.0.1",
            port=self.port,
            user="admin",
            database=database,
            charset="utf8mb4",
            autocommit=autocommit,
            connect_timeout=5,
        )

    def version(self) -> str:
        return f"{self.product} {self.rows('SELECT version()')[0][0].split('-')[0]}"

    def end_backends(self, user: str, limit: int | None = None) -> int:
        import MySQLdb  # noqa: PLC0415

        sql = "SELECT id FROM information_schema.processlist WHERE user = %s ORDER BY rand()"
        ended = 0
        for (id,) in self.rows(sql, [user])[:limit]:
            try:
                self.rows("KILL CONNECTION %s", [id])
                ended += 1
            except MySQLdb.OperationalError:
                pass  # it had gone by itself
        return ended

    def limit(self, user: str, *, reset: bool = False) -> None:
        self.rows(f"SET GLOBAL {self.statement_limit} = {'DEFAULT' if reset else self.least_limit}")
        self.rows(f"SET GLOBAL innodb_lock_wait_timeout = {'DEFAULT' if reset else 1}")


class MySQL(MariaDB):
    """The same with the programs of MySQL; the environment variable MYSQLD names another `mysqld` than that in PATH."""

    vendor = "mysql"
    product = "MySQL"
    options = ("--skip-log-bin", "--mysqlx=OFF", "--secure-file-priv=NULL")
    statement_limit, least_limit = "max_execution_time", 30

    def find_server(self) -> str:
        program = find_program(os.environ.get("MYSQLD") or "mysqld", "usr/sbin")
        if "MariaDB" in (version := self._nursery.run([program, "--no-defaults", "--version"])):
            raise SuiteError(f"{program} is MariaDB's, {version.strip()}: set MYSQLD to the mysqld of MySQL")
        return program

    def installation(self, data: Path) -> list[str]:
        return [
            self._program,
            *("--no-defaults", "--initialize-insecure", f"--datadir={data}"),
            *([f"--user={self._user}"] if self._user else []),
        ]


class SQLite(DatabaseServer):
    """A file."""

    vendor = "sqlite"

    def __init__(self, nursery: Nursery) -> None:
        self._path = nursery.directory / "outbox.sqlite3"

    def start(self) -> None:
        """Nothing: there is no server."""

    def prepare(self) -> None:
        """Nothing: there are no users."""

    def url(self, user: str, port: int | None = None, database: str = DATABASE) -> str:
        return f"sqlite:///{self._path}"

    def connect(self, database: str = DATABASE, *, autocommit: bool = True) -> Any:
        return sqlite3.connect(self._path, timeout=20, isolation_level=None if autocommit else "IMMEDIATE")

    def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"


SERVERS: dict[str, type[PostgreSQL] | type[MariaDB] | type[SQLite]] = {
    kind.vendor: kind for kind in (PostgreSQL, MariaDB, MySQL, SQLite)
}


def own_name() -> str:
    """Return the name of the user that runs this."""
    return pwd.getpwuid(os.geteuid()).pw_name


def owned_directory(path: Path, user: str | None) -> Path:
    """Make a directory that belongs to a user, this one by default."""
    path.mkdir(mode=0o700)
    if user:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return path
