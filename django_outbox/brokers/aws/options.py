"""The options of both publishers, validated."""

from collections.abc import Mapping
from dataclasses import dataclass

from botocore.config import Config
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import CONNECT_TIMEOUT, UrlOption, require_number, require_seconds

MAX_MESSAGE_BYTES = 1024 * 1024
"""Maximum number of bytes of a request of Amazon SQS, and of Amazon SNS if the topic permits it:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/dg/large-message-payloads.html"""

MIN_MESSAGE_BYTES = 1024
"""Minimum of MaximumMessageSize of a queue or topic."""

MAX_CONCURRENCY = 1000

ENDPOINT = UrlOption("endpoint_url", "http://localhost:4566", ("http", "https"))

SESSION_KEYS = (
    "profile_name",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_account_id",
)


@dataclass(kw_only=True, eq=False, repr=False)
class AWSOptions:
    """The options of both publishers; `SQSPublisher` describes them. No error shows credentials."""

    region: str | None = None
    endpoint_url: str | None = None
    session: Mapping[str, str] | None = None
    timeout: float = 30.0
    concurrency: int = 10
    max_message_bytes: int = MAX_MESSAGE_BYTES

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        require_number("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        require_number("max_message_bytes", self.max_message_bytes, MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        if self.endpoint_url is not None and "@" in ENDPOINT.read_one(self.endpoint_url).netloc:
            raise ImproperlyConfigured("endpoint_url contains a user or a password; set the option session instead.")
        session: object = self.session
        if session is not None and not (isinstance(session, Mapping) and set(session) <= set(SESSION_KEYS)):
            raise ImproperlyConfigured(
                f"session must be a dict with any of the keys {', '.join(SESSION_KEYS)}; "
                "the region is the option region."
            )

    def make_config(self) -> Config:
        return Config(
            # Entries are valid as they are encoded; botocore would take a sixth of the time to verify them.
            parameter_validation=False,
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=min(CONNECT_TIMEOUT, self.timeout),
            read_timeout=self.timeout,
            # Each worker has that many requests in flight.
            max_pool_connections=MAX_CONCURRENCY,
        )
