"""A publisher for Redis streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from django_outbox.brokers.options import Template, require_flag, require_number
from django_outbox.brokers.publisher import Publisher
from django_outbox.brokers.redis.call import RedisCall
from django_outbox.brokers.redis.connection import RedisPool
from django_outbox.brokers.redis.encoding import RedisEncoder
from django_outbox.brokers.redis.errors import Lost
from django_outbox.brokers.redis.options import RedisOptions
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork

MAX_LENGTH = 2**53


@dataclass(kw_only=True, eq=False, repr=False)
class RedisStreamsPublisher(RedisOptions, Publisher):
    """Appends messages to Redis streams with XADD, a whole batch in one pipeline.

    A message is accepted when Redis has replied with the ID of its entry. The guarantee depends on the server: without
    `appendfsync always` it has the message in memory, and loses up to a second of messages (or everything since the
    last snapshot) if it crashes; and a failover may lose messages that the new master had not received.

    An entry has the fields `id`, `type`, `topic` and `key` (each unless it is empty), `occurred_at` (ISO 8601, UTC),
    `headers` (a JSON object, unless there are none) and `payload` (the JSON text of the message, unchanged).

    Args:
        alias: the publisher's name in the settings.
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS. With `sentinels`, it names the
            master instead of a host: `redis://user:password@mymaster/0`.
        sentinels: the Sentinels' URLs, such as `redis://host:26379`, which may have their own login.
        stream: the name of a message's stream, in which `{topic}` stands for its topic (its type if that is empty),
            `{type}` for its type and `{key}` for its key.
        max_length: number of entries to which streams are trimmed, approximately; None for no limit. ENTRIES ARE
            DELETED WHETHER OR NOT A CONSUMER HAS READ THEM.
        deduplicate: whether Redis drops a message that is sent again while it remembers its ID, for
            `stream-idmp-duration` seconds. It needs Redis 8.6.2 or newer.
        timeout: seconds for all replies to a batch, at most a day. Connecting may take 5 seconds, at most `timeout`.
        ssl: for `rediss://`, a dict with any of `cafile` (the authority to trust instead of the system's), `certfile`
            and `keyfile` (the client's certificate), all paths of PEM files. The server is always verified.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows a
            password.
    """

    # Redis runs a pipeline in order, but refuses commands individually: for lack of memory, or because of the type or
    # the permissions of one stream. It runs the commands after a refused one, and no transaction helps: EXEC neither
    # undoes nor stops for an error of a command.
    keeps_order = False
    messaging_system: ClassVar[str] = "redis"
    broker_name = "Redis"

    stream: str = "{topic}"
    max_length: int | None = None
    deduplicate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            require_number("max_length", self.max_length, 1, MAX_LENGTH)
        require_flag("deduplicate", self.deduplicate)
        producer = self.alias if self.deduplicate else ""
        self._encoder = RedisEncoder(Template("stream", self.stream), self.max_length, producer)
        self._start_over()
        after_fork(self, type(self)._start_over)

    def describe(self) -> str:
        return f"Redis at {self.describe_servers()}, stream {self.stream!r}"

    def prepare(self) -> str:
        try:
            connection = self._pool.take()
        except Lost as error:
            return f"cannot connect to Redis at {self.describe_servers()}: {error}"
        self._pool.put(connection)
        return ""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return RedisCall(messages, self._encoder, self._pool, self.timeout).run()

    def name_destination(self, message: Message) -> str:
        return self._encoder.stream.render(message)

    def close(self) -> None:
        self._pool.close()

    def _start_over(self) -> None:
        self._pool = RedisPool(self, deduplicate=self.deduplicate)
