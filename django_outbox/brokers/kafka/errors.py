"""The errors of Kafka and librdkafka: their meaning for a message, and the remedy.

Sources: the broker's codes are in https://kafka.apache.org/protocol.html#protocol_error_codes, librdkafka's own (with
an underscore) in its rdkafka.h. Which of them librdkafka retries is in `rd_kafka_handle_Produce_error` and
`rd_kafka_err_action` of its rdkafka_request.c; they never appear in a delivery report before the producer is purged.
"""

import enum
from dataclasses import dataclass

from confluent_kafka import KafkaError

from django_outbox.messages import Outcome, rejected, retry_later

_NOT_AUTHORIZED = "give the user of config the permission to write to the topic"
_REFUSED = "the topic's settings, or a policy of the cluster, do not accept it"

_FIRST_CODE_OF_THE_BROKER = -1
"""UNKNOWN. Lower codes are librdkafka's own."""

_CONNECTION_REMEDIES: dict[int, str] = {
    KafkaError._AUTHENTICATION: "check security.protocol and the sasl options in config",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check the sasl options in config",
    KafkaError._SSL: "check the ssl options in config, and whether a certificate has expired",
    KafkaError._RESOLVE: "check the host names of bootstrap.servers in config",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "give the user of config the permission to write to a topic, or the cluster permission IdempotentWrite"
    ),
    KafkaError.UNSUPPORTED_VERSION: "the publisher needs Kafka 0.11 or later",
}

REBALANCING = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}
"""Errors of a commit while the members of the group change."""

_TLS_FAILED = ("in state SSL_HANDSHAKE", "SSL routines")
"""Parts of the reason if a broker has closed the connection because it does not speak TLS, or refuses a certificate."""


class Blame(enum.Enum):
    MESSAGE = "message"
    """This message, or every message for its topic."""

    BATCH = "batch"
    """One of the messages that were written to the partition together; the broker does not identify it."""

    NONE = "none"
    """No message: it was not written because of another message, or because the producer ended. Send it again."""

    BROKER = "broker"
    """The broker, or the way to it: an outage."""


@dataclass(frozen=True, slots=True)
class Meaning:
    blame: Blame
    word: str = ""
    permanent: bool = False
    remedy: str = ""

    def outcome(self, reason: str) -> Outcome:
        make = rejected if self.permanent else retry_later
        return make(f"{reason}: {self.remedy}" if self.remedy else reason, error_class=f"kafka.{self.word}")


_TOO_LARGE = Meaning(
    Blame.BATCH,
    "too_large",
    permanent=True,
    remedy="send less, or raise message.max.bytes in config and on the broker (topics: max.message.bytes)",
)
_UNKNOWN_TOPIC = Meaning(Blame.MESSAGE, "unknown_topic", remedy="create the topic, or correct the option topic")
_NOT_WRITTEN = Meaning(Blame.NONE)
_OUTAGE = Meaning(Blame.BROKER)

MEANINGS: dict[int, Meaning] = {
    # The message itself. `produce` raises these two before anything is sent.
    KafkaError._INVALID_ARG: Meaning(Blame.MESSAGE, "unencodable", permanent=True),
    KafkaError._BAD_MSG: Meaning(Blame.MESSAGE, "unencodable", permanent=True),
    # One of a batch of records, because the broker checks each batch as a whole.
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: _TOO_LARGE,
    # A compacted topic needs keys; an interceptor or a schema check of the broker refuses records.
    KafkaError.INVALID_RECORD: Meaning(Blame.BATCH, "invalid_record", permanent=True, remedy=_REFUSED),
    KafkaError.INVALID_MSG: Meaning(Blame.BATCH, "invalid_record", permanent=True, remedy=_REFUSED),
    KafkaError.INVALID_TIMESTAMP: Meaning(Blame.BATCH, "invalid_timestamp", permanent=True, remedy=_REFUSED),
    KafkaError.POLICY_VIOLATION: Meaning(Blame.BATCH, "policy_violation", permanent=True, remedy=_REFUSED),
    # The topic. Someone may create it, or permit to write to it.
    KafkaError.UNKNOWN_TOPIC_OR_PART: _UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_TOPIC: _UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION: _UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID: _UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Meaning(Blame.MESSAGE, "not_authorized", remedy=_NOT_AUTHORIZED),
    KafkaError.TOPIC_EXCEPTION: Meaning(
        Blame.MESSAGE,
        "invalid_topic",
        permanent=True,
        remedy="a topic has up to 249 letters, digits, periods, hyphens and underscores; correct the option topic",
    ),
    # Not written because of another message or because the producer ended.
    KafkaError._INVALID_DIFFERENT_RECORD: _NOT_WRITTEN,
    KafkaError._FATAL: _NOT_WRITTEN,
    KafkaError._PURGE_QUEUE: _NOT_WRITTEN,
    KafkaError._PURGE_INFLIGHT: _NOT_WRITTEN,
    KafkaError._RETRY: _NOT_WRITTEN,
    # The broker has lost, or never had, the producer's sequence. A new producer begins another one.
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER: _NOT_WRITTEN,
    KafkaError.DUPLICATE_SEQUENCE_NUMBER: _NOT_WRITTEN,
    KafkaError.UNKNOWN_PRODUCER_ID: _NOT_WRITTEN,
    KafkaError.INVALID_PRODUCER_EPOCH: _NOT_WRITTEN,
    KafkaError.INVALID_PRODUCER_ID_MAPPING: _NOT_WRITTEN,
    KafkaError.PRODUCER_FENCED: _NOT_WRITTEN,
    # All messages are concerned. They wait until someone has changed the cluster or the settings.
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _OUTAGE,
    KafkaError.SASL_AUTHENTICATION_FAILED: _OUTAGE,
    KafkaError.UNSUPPORTED_VERSION: _OUTAGE,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: _OUTAGE,
    KafkaError.NETWORK_EXCEPTION: _OUTAGE,
}


def meaning_of(error: KafkaError) -> Meaning:
    """Return the meaning of an error in a delivery report.

    An unknown code of the broker is the refusal of a batch, which may succeed later; one of librdkafka is an outage.
    """
    known = MEANINGS.get(error.code())
    if known is not None:
        return known
    if error.code() >= _FIRST_CODE_OF_THE_BROKER:
        return Meaning(Blame.BATCH, error.name().lower())
    return _OUTAGE


def explain_commit(error: KafkaError) -> str:
    """Return why a commit was refused; empty if the next commit may succeed.

    Errors of librdkafka itself are about the connection, which is reported in other ways.
    """
    if error.code() < 0 or error.code() in REBALANCING:
        return ""
    return error.str()


def explain(error: KafkaError) -> str:
    reason = error.str().rstrip(".")
    code = KafkaError._SSL if any(words in reason for words in _TLS_FAILED) else error.code()
    remedy = _CONNECTION_REMEDIES.get(code, "")
    return f"{reason}: {remedy}" if remedy else reason
