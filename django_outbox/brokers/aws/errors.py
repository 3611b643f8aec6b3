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

from botocore.exceptions import ClientError

from django_outbox.utils.text import one_line

_QUOTED_VALUE = re.compile(r"Value '.*' at '", re.DOTALL)
"""The value that a validation error quotes, which may be a payload."""


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
    """An error, explained."""

    kind: Kind
    text: str


def _read_table(table: Mapping[Kind, Mapping[str, str]]) -> dict[str, tuple[Kind, str]]:
    """Return the kind and the remedy by name, given the names by kind and remedy."""
    return {
        name: (kind, remedy)
        for kind, names_by_remedy in table.items()
        for remedy, names in names_by_remedy.items()
        for name in names.split()
    }


_CODES = _read_table(
    {
        # Amazon SQS limits the transactions per second of FIFO queues, Amazon SNS the messages per second of a topic.
        Kind.THROTTLED: {
            "": "RequestThrottled Throttling ThrottlingException Throttled ThrottledException TooManyRequestsException "
            "RequestLimitExceeded SlowDown OverLimit KmsThrottled KMSThrottling KMSThrottlingException",
        },
        Kind.CREDENTIALS: {
            "the credentials have expired; renew them": "ExpiredToken ExpiredTokenException",
            "the request is too old; check the clock of this machine": "RequestExpired RequestTimeTooSkewed",
            "AWS does not accept the credentials; check the access key, or the role or profile that it comes from": (
                "InvalidClientTokenId UnrecognizedClientException InvalidAccessKeyId MissingAuthenticationToken "
                "MissingAuthenticationTokenException NotAuthorized"
            ),
            "the signature is wrong; check the secret access key, the region and the clock of this machine": (
                "SignatureDoesNotMatch InvalidSignatureException IncompleteSignature IncompleteSignatureException"
            ),
            "the account is not subscribed to the service in this region": "OptInRequired",
        },
        Kind.DENIED: {
            "allow the action for this destination, in the policy of the caller and of the destination": (
                "AccessDenied AccessDeniedException AuthorizationError UnauthorizedOperation"
            ),
            "the destination takes signed requests over HTTPS only; correct endpoint_url": "InvalidSecurity",
            "let the caller use the KMS key of the destination: kms:GenerateDataKey and kms:Decrypt": (
                "KmsAccessDenied KMSAccessDenied"
            ),
            "the KMS key of the destination cannot be used; enable it, or set another one": (
                "KmsDisabled KMSDisabled KmsInvalidState KMSInvalidState KmsNotFound KMSNotFound KmsOptInRequired "
                "KMSOptInRequired KmsInvalidKeyUsage"
            ),
        },
        Kind.MISSING: {
            "create it, or correct its name, the region or the message's topic": "NonExistentQueue QueueDoesNotExist",
            "correct the account number in queue_url": "InvalidAddress",
            "create it, or correct topic_arn or the message's topic": "NotFound NotFoundException",
        },
        Kind.CONTENT: {
            "": "InvalidMessageContents InvalidParameter InvalidParameterValue ParameterValueInvalid "
            "InvalidAttributeValue MissingParameter ValidationError ValidationException",
            "lower max_message_bytes to what the destination takes": "BatchRequestTooLong",
        },
        Kind.INTERNAL: {"": "InternalError InternalFailure ServiceUnavailable ServiceUnavailableException"},
    }
)
"""The codes of errors that AWS returns."""

_EXCEPTIONS = _read_table(
    {
        Kind.CREDENTIALS: {
            "give this process credentials of AWS, or name a profile in the option session": (
                "NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError "
                "NoAuthTokenError SSOError LoginError"
            ),
            "correct profile_name in the option session": "ProfileNotFound",
            "set the option region, or AWS_DEFAULT_REGION": "NoRegionError",
        },
        Kind.INTERNAL: {
            "correct endpoint_url, or name the certificate authority in AWS_CA_BUNDLE": "SSLError",
            "correct the region or endpoint_url, or let this machine reach it": (
                "EndpointConnectionError ConnectTimeoutError"
            ),
        },
    }
)
"""Exceptions of botocore without a response. Every other one is an outage, too:
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


def explain_refusal(error: ClientError) -> Problem:
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
    return problem


def explain_failure(error: BaseException) -> Problem:
    """Explain why a request got no response, or could not be made."""
    text = one_line(error, 500).rstrip(".") or type(error).__name__
    names = (each.__name__ for each in type(error).__mro__)
    kind, remedy = next((_EXCEPTIONS[name] for name in names if name in _EXCEPTIONS), (Kind.INTERNAL, ""))
    return Problem(kind, f"{text}; {remedy}" if remedy else text)
