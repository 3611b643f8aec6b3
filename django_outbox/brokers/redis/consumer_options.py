"""The options of a stream."""

from dataclasses import dataclass
from typing import Literal

from django.core.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from django_outbox.brokers.options import require_choice, require_seconds, require_text
from django_outbox.brokers.redis.names import RELEASED

GroupStart = Literal["beginning", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What to read, and how.

    Args:
        name: the stream.
        group: the consumer group.
        create_group: where a group begins that does not exist yet; None if it must exist.
        consumer: the name of this consumer; blank for a new one for each process.
        claim_idle: seconds after which the entries of a consumer that has vanished are taken over.
        dead_letters: where rejected entries go; blank for nowhere.
    """

    name: str
    group: str
    create_group: GroupStart | None
    consumer: str
    claim_idle: float
    dead_letters: str


def read_stream_options(
    *,
    stream: object,
    group: object,
    create_group: object,
    consumer: object,
    claim_idle: float,
    dead_letters: object,
    rejects: bool,
    cluster: bool,
) -> StreamOptions:
    """Validate the options of a stream, which are described in `RedisStreamsConsumer`.

    `rejects` is whether other options reject messages, and `cluster` whether the stream is in a cluster.

    Raises:
        ImproperlyConfigured: an option is invalid.
    """
    require_text("stream", stream, "'order.created'")
    require_text("group", group, "'billing'")
    require_choice("create_group", create_group, ("beginning", "end", None))
    require_seconds("claim_idle", claim_idle)
    if not isinstance(consumer, str) or consumer == RELEASED:
        raise ImproperlyConfigured(f"consumer is {consumer!r}; it must be a string, and not {RELEASED!r}.")
    name, dead = str(stream), dead_letters
    if not isinstance(dead, str) or dead == name:
        raise ImproperlyConfigured(f"dead_letters is {dead!r}; it must be the name of another stream.")
    if rejects and not dead:
        raise ImproperlyConfigured(
            "dead_letters is blank, but invalid or unknown_types is 'reject'; name the stream for the dead letters."
        )
    if cluster and dead and key_slot(name.encode()) != key_slot(dead.encode()):
        raise ImproperlyConfigured(
            f"dead_letters is {dead!r}, which may be on another node of the cluster than {name!r}; give both "
            "names the same part in braces, such as {orders}.dead and {orders}."
        )
    start: GroupStart | None = "beginning" if create_group == "beginning" else "end" if create_group else None
    return StreamOptions(
        name=name,
        group=str(group),
        create_group=start,
        consumer=consumer,
        claim_idle=claim_idle,
        dead_letters=dead,
    )
