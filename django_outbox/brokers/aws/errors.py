"""The errors of Amazon SQS, Amazon SNS and botocore: their meaning for a message, and the remedy.

The API references list the codes of each operation, and of the errors common to all actions:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html#API_SendMessageBatch_Errors
https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html#API_PublishBatch_Errors
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/CommonErrors.html
https://docs.aws.amazon.com/sns/latest/api/CommonErrors.html
"""

import enum
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from botocore import exceptions

from django_outbox.text import one_line


class Kind(enum.Enum):
    """The cause of an error."""

    THROTTLED = "throttled"
    """Too many requests, for the queue or the account."""

    CREDENTIALS = "credentials"
    """No request of this account is accepted now."""

    DENIED = "denied"
    """No message for this destination is accepted until its permissions change."""

    MISSING = "missing"
    """The destination does not exist."""

    CONTENT = "content"
    """AWS will not accept the message; for a request, one of its messages."""

    INTERNAL = "internal"
    """AWS failed."""

    UNKNOWN = "unknown"
    """A code that is not in the table."""


class Problem(NamedTuple):
    """An error, explained.

    Args:
        kind: the cause.
        text: the reason on one line, with the remedy.
        retry_after: seconds to wait, if AWS named them.
    """

    kind: Kind
    text: str
    retry_after: float | None = None


_EXPIRED = "the credentials have expired; renew them"
_INVALID = "AWS does not accept the credentials; check the access key, or the role or profile that it comes from"
_SIGNATURE = "the signature is wrong; check the secret access key, the region and the clock of this machine"
_PERMISSION = "allow the action for this destination, in the policy of the caller and of the destination"
_ENCRYPTION = "let the caller use the KMS key of the destination: kms:GenerateDataKey and kms:Decrypt"
_KEY_STATE = "the KMS key of the destination cannot be used; enable it, or set another one"
_NO_QUEUE = "create it, or correct its name, the region or the message's topic"
_NO_TOPIC = "create it, or correct topic_arn or the message's topic"
_NO_ACCOUNT = "correct the account number in queue_url"
_HTTPS = "the destination takes signed requests over HTTPS only; correct endpoint_url"

_CODES: Mapping[str, tuple[Kind, str]] = {
    # Amazon SQS limits the transactions per second of FIFO queues, Amazon SNS the messages per second of each topic.
    "RequestThrottled": (Kind.THROTTLED, ""),
    "Throttling": (Kind.THROTTLED, ""),
    "ThrottlingException": (Kind.THROTTLED, ""),
    "Throttled": (Kind.THROTTLED, ""),
    "ThrottledException": (Kind.THROTTLED, ""),
    "TooManyRequestsException": (Kind.THROTTLED, ""),
    "RequestLimitExceeded": (Kind.THROTTLED, ""),
    "SlowDown": (Kind.THROTTLED, ""),
    "OverLimit": (Kind.THROTTLED, ""),
    "KmsThrottled": (Kind.THROTTLED, ""),
    "KMSThrottling": (Kind.THROTTLED, ""),
    "KMSThrottlingException": (Kind.THROTTLED, ""),
    "ExpiredToken": (Kind.CREDENTIALS, _EXPIRED),
    "ExpiredTokenException": (Kind.CREDENTIALS, _EXPIRED),
    "RequestExpired": (Kind.CREDENTIALS, "the request is too old; check the clock of this machine"),
    "RequestTimeTooSkewed": (Kind.CREDENTIALS, "the request is too old; check the clock of this machine"),
    "InvalidClientTokenId": (Kind.CREDENTIALS, _INVALID),
    "UnrecognizedClientException": (Kind.CREDENTIALS, _INVALID),
    "InvalidAccessKeyId": (Kind.CREDENTIALS, _INVALID),
    "MissingAuthenticationToken": (Kind.CREDENTIALS, _INVALID),
    "MissingAuthenticationTokenException": (Kind.CREDENTIALS, _INVALID),
    "NotAuthorized": (Kind.CREDENTIALS, _INVALID),
    "SignatureDoesNotMatch": (Kind.CREDENTIALS, _SIGNATURE),
    "InvalidSignatureException": (Kind.CREDENTIALS, _SIGNATURE),
    "IncompleteSignature": (Kind.CREDENTIALS, _SIGNATURE),
    "IncompleteSignatureException": (Kind.CREDENTIALS, _SIGNATURE),
    "OptInRequired": (Kind.CREDENTIALS, "the account is not subscribed to the service in this region"),
    "AccessDenied": (Kind.DENIED, _PERMISSION),
    "AccessDeniedException": (Kind.DENIED, _PERMISSION),
    "AuthorizationError": (Kind.DENIED, _PERMISSION),
    "UnauthorizedOperation": (Kind.DENIED, _PERMISSION),
    "InvalidSecurity": (Kind.DENIED, _HTTPS),
    "KmsAccessDenied": (Kind.DENIED, _ENCRYPTION),
    "KMSAccessDenied": (Kind.DENIED, _ENCRYPTION),
    "KmsDisabled": (Kind.DENIED, _KEY_STATE),
    "KMSDisabled": (Kind.DENIED, _KEY_STATE),
    "KmsInvalidState": (Kind.DENIED, _KEY_STATE),
    "KMSInvalidState": (Kind.DENIED, _KEY_STATE),
    "KmsNotFound": (Kind.DENIED, _KEY_STATE),
    "KMSNotFound": (Kind.DENIED, _KEY_STATE),
    "KmsOptInRequired": (Kind.DENIED, _KEY_STATE),
    "KMSOptInRequired": (Kind.DENIED, _KEY_STATE),
    "KmsInvalidKeyUsage": (Kind.DENIED, _KEY_STATE),
    "NonExistentQueue": (Kind.MISSING, _NO_QUEUE),
    "QueueDoesNotExist": (Kind.MISSING, _NO_QUEUE),
    "InvalidAddress": (Kind.MISSING, _NO_ACCOUNT),
    "NotFound": (Kind.MISSING, _NO_TOPIC),
    "NotFoundException": (Kind.MISSING, _NO_TOPIC),
    "InvalidMessageContents": (Kind.CONTENT, ""),
    "BatchRequestTooLong": (Kind.CONTENT, "lower max_message_bytes to what the destination takes"),
    "InvalidParameter": (Kind.CONTENT, ""),
    "InvalidParameterValue": (Kind.CONTENT, ""),
    "ParameterValueInvalid": (Kind.CONTENT, ""),
    "InvalidAttributeValue": (Kind.CONTENT, ""),
    "MissingParameter": (Kind.CONTENT, ""),
    "ValidationError": (Kind.CONTENT, ""),
    "ValidationException": (Kind.CONTENT, ""),
    "InternalError": (Kind.INTERNAL, ""),
    "InternalFailure": (Kind.INTERNAL, ""),
    "ServiceUnavailable": (Kind.INTERNAL, ""),
    "ServiceUnavailableException": (Kind.INTERNAL, ""),
}

_QUOTED_VALUE = re.compile(r"Value '.*' at '", re.DOTALL)
"""The value that a validation error quotes, which may be a payload."""

_CREDENTIAL_ERRORS = tuple(
    getattr(exceptions, name)
    for name in (
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "NoAuthTokenError",
        "SSOError",
        "LoginError",
    )
    # Older versions of botocore lack the last one.
    if hasattr(exceptions, name)
)

_FAILURES = (
    (
        _CREDENTIAL_ERRORS,
        Kind.CREDENTIALS,
        "give this process credentials of AWS, or name a profile in the option session",
    ),
    (exceptions.ProfileNotFound, Kind.CREDENTIALS, "correct profile_name in the option session"),
    (exceptions.NoRegionError, Kind.CREDENTIALS, "set the option region, or AWS_DEFAULT_REGION"),
    (exceptions.SSLError, Kind.INTERNAL, "correct endpoint_url, or name the certificate authority in AWS_CA_BUNDLE"),
    (
        (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError),
        Kind.INTERNAL,
        "correct the region or endpoint_url, or let this machine reach it",
    ),
)
"""Exceptions of botocore without a response, and the remedy. Every other one is an outage, too:
https://github.com/boto/botocore/blob/develop/botocore/exceptions.py"""


def explain_code(code: str, message: str, *, sender_fault: bool = False) -> Problem:
    """Explain an error that AWS reported for one entry of a batch.

    A `sender_fault`, with which AWS blames the request, decides for codes that are not in the table.
    """
    short = code.rpartition(".")[2]
    kind, remedy = _CODES.get(short, (Kind.CONTENT if sender_fault else Kind.UNKNOWN, ""))
    # AWS explains a wrong signature with the request, and with the session token in it.
    text = "" if kind is Kind.CREDENTIALS else one_line(_QUOTED_VALUE.sub("Value at '", message), 500)
    reason = "; ".join(filter(None, (text.rstrip("."), remedy)))
    return Problem(kind, ": ".join(filter(None, (short, reason))))


def explain_refusal(error: exceptions.ClientError) -> Problem:
    """Explain an error that AWS returned for a whole request."""
    found: Mapping[str, Any] = error.response.get("Error", {})
    metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    code = str(found.get("Code", ""))
    problem = explain_code(code, str(found.get("Message", "")))
    status = metadata.get("HTTPStatusCode", 0)
    # botocore reports the status as the code if it cannot read the body, for example of a proxy.
    if problem.kind is Kind.UNKNOWN and status == 429:
        problem = problem._replace(kind=Kind.THROTTLED)
    elif problem.kind is Kind.UNKNOWN and status == 413:
        problem = problem._replace(kind=Kind.CONTENT)
    elif problem.kind is Kind.UNKNOWN and (status >= 500 or code.isdigit()):
        problem = problem._replace(kind=Kind.INTERNAL)
    retry_after = str(metadata.get("HTTPHeaders", {}).get("retry-after", ""))
    return problem._replace(retry_after=float(retry_after)) if retry_after.isdecimal() else problem


def explain_failure(error: BaseException) -> Problem:
    """Explain why a request got no response, or could not be made."""
    text = one_line(error, 500).rstrip(".") or type(error).__name__
    for types, kind, remedy in _FAILURES:
        if isinstance(error, types):
            return Problem(kind, f"{text}; {remedy}")
    return Problem(Kind.INTERNAL, text)
