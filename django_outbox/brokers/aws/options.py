"""The options that both publishers share: validate them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import BINARY, validate_format
from django_outbox.brokers.options import require_number, require_seconds

KIBIBYTE = 1024

MAX_MESSAGE_BYTES = KIBIBYTE * KIBIBYTE
"""Maximum number of bytes of a request of Amazon SQS, and of Amazon SNS if the topic permits it:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/dg/large-message-payloads.html"""

MIN_MESSAGE_BYTES = KIBIBYTE
"""The least that MaximumMessageSize of a queue or topic may be."""

CONNECT_TIMEOUT = 5.0
"""Maximum number of seconds for connecting, unless the timeout is shorter."""

SESSION_KEYS = (
    "profile_name",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_account_id",
)

OPTION_INSTEAD = {
    "retries": "nothing, because the relay retries",
    "connect_timeout": "the option timeout",
    "read_timeout": "the option timeout",
    "max_pool_connections": "the option concurrency",
    "region_name": "the option region",
}
"""Arguments of botocore's `Config`, and what replaces each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How to construct a client of boto3, and how to use it.

    Args:
        region: the region; None for the one of boto3's configuration.
        endpoint_url: the URL of the service; None for the one of AWS.
        session: arguments of `boto3.session.Session`.
        config: botocore's configuration.
        timeout: seconds that a request may take.
        concurrency: maximum number of requests in flight.
        max_message_bytes: maximum number of bytes of a request, and therefore of a message.
    """

    region: str | None
    endpoint_url: str | None
    session: Mapping[str, str]
    config: Config
    timeout: float
    concurrency: int
    max_message_bytes: int


def read_options(
    *,
    region: object,
    endpoint_url: object,
    session: object,
    config: object,
    timeout: float,
    concurrency: int,
    max_message_bytes: int,
) -> ClientOptions:
    """Validate the options of a client. They are described in `AWSPublisher`.

    Raises:
        ImproperlyConfigured: an option is invalid. The error never shows credentials.
    """
    require_seconds("timeout", timeout)
    require_number("concurrency", concurrency, 1, 1000)
    require_number("max_message_bytes", max_message_bytes, MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
    if region is not None and (not isinstance(region, str) or not region):
        raise ImproperlyConfigured(f"region is {region!r}; it must be a name such as 'eu-central-1', or None.")
    return ClientOptions(
        region=region,
        endpoint_url=_read_endpoint_url(endpoint_url),
        session=_read_session(session),
        config=_read_config(config, timeout, concurrency),
        timeout=timeout,
        concurrency=concurrency,
        max_message_bytes=max_message_bytes,
    )


def validate_body_format(format: object, source: object) -> None:
    """Validate the options `format` and `source`.

    Raises:
        ImproperlyConfigured: one of them is invalid, or the format is that of CloudEvents in binary mode.
    """
    validate_format(format, source)
    if format == BINARY:
        raise ImproperlyConfigured(
            "format is 'cloudevents', but CloudEvents define no binary mode for Amazon SQS and Amazon SNS; use "
            "'cloudevents-structured'."
        )


def _read_endpoint_url(url: object) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        readable = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        readable = False
    if not readable or parts is None or "@" in parts.netloc:
        raise ImproperlyConfigured(
            "endpoint_url must be a URL such as 'http://localhost:4566', without user and password, or None."
        )
    return str(url)


def _read_session(session: object) -> Mapping[str, str]:
    if session is None:
        return {}
    if (
        not isinstance(session, Mapping)
        or not set(session) <= set(SESSION_KEYS)
        or not all(isinstance(value, str) and value for value in session.values())
    ):
        raise ImproperlyConfigured(
            f"session must be a dict with any of the keys {', '.join(SESSION_KEYS)}, each a string that is not blank; "
            "the region is the option region."
        )
    return dict(session)


def _read_config(config: object, timeout: float, concurrency: int) -> Config:
    given: Mapping[Any, Any] = {} if config is None else config if isinstance(config, Mapping) else {None: None}
    if not all(isinstance(name, str) for name in given):
        raise ImproperlyConfigured("config must be a dict of arguments of botocore.config.Config.")
    for name in given:
        if name in OPTION_INSTEAD:
            raise ImproperlyConfigured(f"config must not set {name}; use {OPTION_INSTEAD[name]}.")
    ours = {
        # Entries are valid as they are encoded; botocore would take a sixth of the time to verify them.
        "parameter_validation": False,
        "tcp_keepalive": True,
        **given,
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": min(CONNECT_TIMEOUT, timeout),
        "read_timeout": timeout,
        "max_pool_connections": concurrency,
    }
    try:
        return Config(**ours)
    except (TypeError, ValueError, BotoCoreError) as error:
        raise ImproperlyConfigured(f"config is invalid: {error}.") from None
