"""Log in to each of the servers that the tests run on. The drivers are installed after this file is imported."""

from contextlib import closing
from urllib.parse import unquote, urlsplit


class WrongServer(Exception):
    """The server that answers is a different product."""


def log_in_to_postgresql(url: str) -> None:
    import psycopg  # noqa: PLC0415

    psycopg.connect(url, connect_timeout=5).close()


def log_in_to_mariadb(url: str) -> None:
    if "MariaDB" not in (version := version_of_mysql(url)):
        raise WrongServer(f"it is MySQL {version}; its URL belongs in MYSQL_URL")


def log_in_to_mysql(url: str) -> None:
    if "MariaDB" in (version := version_of_mysql(url)):
        raise WrongServer(f"it is {version}; its URL belongs in MARIADB_URL")


def version_of_mysql(url: str) -> str:
    import MySQLdb  # noqa: PLC0415

    parts = urlsplit(url)
    with closing(
        MySQLdb.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.strip("/")),
            connect_timeout=5,
        )
    ) as connection:
        version: str = connection.get_server_info()
    return version


def log_in_to_rabbitmq(url: str) -> None:
    import pika  # noqa: PLC0415

    parameters = pika.URLParameters(url)
    parameters.connection_attempts = 1
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 5
    pika.BlockingConnection(parameters).close()


def log_in_to_redis(url: str) -> None:
    import redis  # noqa: PLC0415

    with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
        client.ping()


def log_in_to_kafka(url: str) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    AdminClient({"bootstrap.servers": url.removeprefix("kafka://")}).list_topics(timeout=5)


def log_in_to_nats(url: str) -> None:
    import asyncio  # noqa: PLC0415

    import nats  # noqa: PLC0415

    async def raise_error(error: Exception) -> None:
        raise error

    async def log_in() -> None:
        client = await nats.connect(url, connect_timeout=5, allow_reconnect=False, error_cb=raise_error)
        try:
            await client.jetstream(timeout=5).account_info()
        except (nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError):
            raise WrongServer("it runs without JetStream; start it with: nats-server -js") from None
        finally:
            await client.close()

    asyncio.run(log_in())
