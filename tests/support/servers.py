"""Find or start the servers that the tests run on: PostgreSQL, MariaDB, RabbitMQ, Redis and NATS.

Each server comes from the first of these places where a login succeeds:

1. the URL in the environment: POSTGRES_URL, MARIADB_URL, AMQP_URL, REDIS_URL or NATS_URL;
2. the standard port on this machine, where `docker compose up` puts it too;
3. the service of compose.yaml, if a Docker engine answers;
4. a package of the system, if there is apt-get and this user is root or has sudo without a password. NATS is then
   started as a process of this run, because the service of its package runs without JetStream.

MySQL and Kafka are optional. MySQL is tested if MYSQL_URL is set. Kafka is the cluster that KAFKA_URL names; or a
broker that the first test that needs it starts, and whose program Maven downloads; or the mock of a cluster that is
part of the client. ElasticMQ, an implementation of Amazon SQS, is tested if Maven can download it.
"""

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import logins, system_packages
from tests.support.jars import ELASTICMQ, KAFKA
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent

PATIENCE = 120
"""Seconds to wait for a server that was just started."""

MYSQL_VARIABLE = "MYSQL_URL"
KAFKA_VARIABLE = "KAFKA_URL"


class ServerMissing(Exception):
    """A server could neither be found nor started; the text names it and the remedies."""


@dataclass(frozen=True)
class Server:
    """One kind of server, and how to find or start it."""

    name: str
    variable: str
    """The environment variable that holds its URL."""
    local_urls: tuple[str, ...]
    """URLs to try on this machine: the first one is that of compose.yaml, the last one the login that `prepare`
    creates."""
    log_in: Callable[[str], None]
    """Logs in with a URL and out again; raises the driver's error if that fails."""
    package: str
    service: str
    prepare: tuple[str, ...] = ()
    """The command with which root creates the login for the tests, once the service runs."""
    program: tuple[str, ...] = ()
    """The package's program with its arguments, which contain `{port}` and `{folder}`, if it is started without the
    service."""


# This role may do no more than the test databases need.
POSTGRESQL_ROLE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'outbox') THEN
        CREATE ROLE outbox LOGIN CREATEDB CREATEROLE PASSWORD 'outbox';
    END IF;
END $$
"""

# Django's system checks connect to the database that the URL names.
MARIADB_ROLE = r"""
CREATE DATABASE IF NOT EXISTS test;
CREATE USER IF NOT EXISTS 'outbox'@'localhost' IDENTIFIED BY 'outbox', 'outbox'@'127.0.0.1' IDENTIFIED BY 'outbox';
GRANT ALL ON `test\_outbox%`.* TO 'outbox'@'localhost', 'outbox'@'127.0.0.1' WITH GRANT OPTION;
GRANT ALL ON test.* TO 'outbox'@'localhost', 'outbox'@'127.0.0.1';
GRANT CREATE USER ON *.* TO 'outbox'@'localhost', 'outbox'@'127.0.0.1';
"""

SERVERS = (
    Server(
        name="PostgreSQL",
        variable="POSTGRES_URL",
        local_urls=(
            "postgres://postgres@127.0.0.1:5432/postgres",
            "postgres://outbox:outbox@127.0.0.1:5432/postgres",
        ),
        log_in=logins.log_in_to_postgresql,
        package="postgresql",
        service="postgresql",
        prepare=("runuser", "-u", "postgres", "--", "psql", "-X", "-q", "-c", POSTGRESQL_ROLE),
    ),
    Server(
        name="MariaDB",
        variable="MARIADB_URL",
        local_urls=("mysql://root@127.0.0.1:3306/test", "mysql://outbox:outbox@127.0.0.1:3306/test"),
        log_in=logins.log_in_to_mariadb,
        package="mariadb-server",
        service="mariadb",
        prepare=("mariadb", "-e", MARIADB_ROLE),
    ),
    Server(
        name="RabbitMQ",
        variable="AMQP_URL",
        local_urls=("amqp://guest:guest@127.0.0.1:5672/%2F",),
        log_in=logins.log_in_to_rabbitmq,
        package="rabbitmq-server",
        service="rabbitmq-server",
    ),
    Server(
        name="Redis",
        variable="REDIS_URL",
        local_urls=("redis://127.0.0.1:6379/11",),
        log_in=logins.log_in_to_redis,
        package="redis-server",
        service="redis-server",
    ),
    Server(
        name="NATS",
        variable="NATS_URL",
        local_urls=("nats://127.0.0.1:4222",),
        log_in=logins.log_in_to_nats,
        package="nats-server",
        service="nats-server",
        program=("nats-server", "-js", "-a", "127.0.0.1", "-p", "{port}", "-sd", "{folder}"),
    ),
)


def find_all() -> dict[str, str]:
    """Return the URL of each server by its environment variable, and print where it comes from."""
    found = {server.variable: find(server) for server in SERVERS}
    if os.environ.get(MYSQL_VARIABLE):
        found[MYSQL_VARIABLE] = _from_environment("MySQL", MYSQL_VARIABLE, logins.log_in_to_mysql)
        print(f"MySQL: found by {MYSQL_VARIABLE}, {without_password(found[MYSQL_VARIABLE])}")
    else:
        print(f"MySQL: not tested, because {MYSQL_VARIABLE} is not set")
    is_mock = os.environ.get(KAFKA_VARIABLE) == "mock"
    reason = f"{KAFKA_VARIABLE} is mock" if is_mock else KAFKA.fill()
    if os.environ.get(KAFKA_VARIABLE) and not is_mock:
        found[KAFKA_VARIABLE] = _from_environment("Kafka", KAFKA_VARIABLE, logins.log_in_to_kafka)
        print(f"Kafka: found by {KAFKA_VARIABLE}, {found[KAFKA_VARIABLE]}")
    elif reason:
        print(f"Kafka: the mock cluster of librdkafka stands in, because {reason}")
    else:
        print(f"Kafka: the tests start Kafka {KAFKA.version} when they need it")
    if reason := ELASTICMQ.fill():
        print(f"Amazon SQS: tested on moto only and not on ElasticMQ, because {reason}")
    else:
        print(f"Amazon SQS: tested on moto and on ElasticMQ {ELASTICMQ.version}")
    return found


def find(server: Server) -> str:
    if os.environ.get(server.variable):
        url, how = _from_environment(server.name, server.variable, server.log_in), f"found by {server.variable}"
    else:
        url, how = _from_this_machine(server)
    print(f"{server.name}: {how}, {without_password(url)}")
    return url


def _from_this_machine(server: Server) -> tuple[str, str]:
    for look, how in WAYS:
        url = look(server)
        if url:
            return url, how
    raise ServerMissing(
        f"{server.name} could neither be found nor started. Do one of these and run this command again:\n"
        f"  - set {server.variable} to the URL of a server, such as {server.local_urls[-1]}\n"
        f"  - start {server.name} on its standard port, with the login of that URL\n"
        f"  - start a Docker engine that this user may use\n"
        f"  - on Debian or Ubuntu, run this command as root, or allow sudo without a password"
    )


def _from_environment(name: str, variable: str, log_in: Callable[[str], None]) -> str:
    url = os.environ[variable]
    reason = refusal(log_in, url)
    if reason:
        is_optional = variable in (MYSQL_VARIABLE, KAFKA_VARIABLE)
        remedy = f"test without {name}" if is_optional else "let the tests find or start a server"
        raise ServerMissing(
            f"Cannot log in to {name} at {variable}={without_password(url)}: {reason}\n"
            f"Start it, correct {variable}, or unset {variable} to {remedy}."
        )
    return url


def _already_running(server: Server) -> str:
    return next((url for url in server.local_urls if not refusal(server.log_in, url)), "")


def _started_in_docker(server: Server) -> str:
    if not docker_answers():
        return ""
    service = server.name.lower()
    print(f"{server.name}: starting the service {service} of compose.yaml")
    command = ["docker", "compose", "up", "--detach", "--wait", service]
    return _wait_for(server, server.local_urls[0]) if not subprocess.call(command, cwd=ROOT) else ""


def _started_as_process(server: Server) -> str:
    if not server.program:
        return ""
    name = server.program[0]
    if not shutil.which(name) and not system_packages.install(server.package, purpose=f"install {server.name}"):
        return ""
    port = free_port()
    folder = tempfile.mkdtemp(prefix=f"outbox-{name}-")
    command = [part.format(port=port, folder=folder) for part in server.program]
    print(f"{server.name}: starting {shlex.join(command)}")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    atexit.register(_end_process, process, folder)
    return _wait_for(server, urlsplit(server.local_urls[0])._replace(netloc=f"127.0.0.1:{port}").geturl())


def _end_process(process: subprocess.Popen[bytes], folder: str) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _started_as_service(server: Server) -> str:
    if server.program or not system_packages.can_install():
        return ""
    missing = system_packages.missing_packages(server.package)
    # `service` works with systemd and without it.
    commands = [*system_packages.install_commands(missing), ("service", server.service, "start")]
    if server.prepare:
        commands.append(server.prepare)
    purpose = f"{'install and start' if missing else 'start'} {server.name}"
    return _wait_for(server, server.local_urls[-1]) if system_packages.run_as_root(*commands, purpose=purpose) else ""


WAYS: tuple[tuple[Callable[[Server], str], str], ...] = (
    (_already_running, "already running on this machine"),
    (_started_in_docker, "started in Docker"),
    (_started_as_process, "started for this run"),
    (_started_as_service, "started as a service"),
)
"""Functions that return the URL of a server, or nothing if they cannot find or start one; and how they did."""


@functools.cache
def docker_answers() -> bool:
    return bool(shutil.which("docker")) and bool(_output("docker", "info", "--format", "{{.ServerVersion}}"))


def refusal(log_in: Callable[[str], None], url: str) -> str:
    """Log in and out; return the reason if that fails, or nothing."""
    try:
        log_in(url)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip() or 'no answer'}"
        return reason.replace(url, without_password(url))
    return ""


def without_password(url: str) -> str:
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url


def _wait_for(server: Server, url: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while reason := refusal(server.log_in, url):
        if time.monotonic() > deadline:
            print(f"{server.name}: no login within {PATIENCE} s: {reason}")
            return ""
        print(f"{server.name}: waiting for it to answer")
        time.sleep(2)
    return url


def _output(*command: str) -> str:
    """Return what a command printed, or nothing if it failed."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if ended.returncode else ended.stdout.strip()
