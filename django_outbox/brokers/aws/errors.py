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
    CREDENTIALS = "credentials"
    """No request of this account is accepted now."""

    DENIED = "denied"
    """No message for this destination is accepted until its permissions change."""

    MISSING = "missing"
    CONTENT = "content"
    """AWS will not accept the message; for a request, one of its messages."""

    INTERNAL = "internal"
    UNKNOWN = "unknown"


class Problem(NamedTuple):
    """An error, explained."""

    kind: Kind
    text: str


_NAMES = {
    # Amazon SQS limits the transactions per second of FIFO queues, Amazon SNS the messages per second of a topic.
    Kind.THROTTLED: "RequestThrottled Throttling ThrottlingException Throttled ThrottledException "
    "TooManyRequestsException RequestLimitExceeded SlowDown OverLimit "
    "KmsThrottled KMSThrottling KMSThrottlingException",
    Kind.CREDENTIALS: "ExpiredToken ExpiredTokenException RequestExpired RequestTimeTooSkewed InvalidClientTokenId "
    "UnrecognizedClientException InvalidAccessKeyId MissingAuthenticationToken MissingAuthenticationTokenException "
    "NotAuthorized SignatureDoesNotMatch InvalidSignatureException IncompleteSignature IncompleteSignatureException "
    "OptInRequired "
    # Exceptions of botocore, which has sent no request: https://github.com/boto/botocore/blob/develop/botocore/exceptions.py
    "NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError NoAuthTokenError SSOError "
    "LoginError ProfileNotFound NoRegionError",
    Kind.DENIED: "AccessDenied AccessDeniedException AuthorizationError UnauthorizedOperation InvalidSecurity "
    "KmsAccessDenied KMSAccessDenied KmsDisabled KMSDisabled KmsInvalidState KMSInvalidState KmsNotFound KMSNotFound "
    "KmsOptInRequired KMSOptInRequired KmsInvalidKeyUsage",
    Kind.MISSING: "NonExistentQueue QueueDoesNotExist InvalidAddress NotFound NotFoundException",
    Kind.CONTENT: "InvalidMessageContents InvalidParameter InvalidParameterValue ParameterValueInvalid "
    "InvalidAttributeValue MissingParameter ValidationError ValidationException BatchRequestTooLong",
    Kind.INTERNAL: "InternalError InternalFailure ServiceUnavailable ServiceUnavailableException",
}

_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_REMEDIES = {
    Kind.CREDENTIALS: "check the credentials and whether they have expired, the region, and the clock of this machine",
    Kind.DENIED: "allow the action for this destination and the use of its KMS key, in their policies and the caller's",
    Kind.MISSING: "create it, or correct its name, the account, the region or the message's topic",
}


def explain_code(code: str, message: str, *, sender_fault: bool = False) -> Problem:
    """Explain an error that AWS reported for one entry of a batch.

    A `sender_fault`, with which AWS blames the request, decides for codes that are not in the table.
    """
    short = code.rpartition(".")[2]
    kind = _KINDS.get(short, Kind.CONTENT if sender_fault else Kind.UNKNOWN)
    # AWS explains a wrong signature with the request, and with the session token in it.
    text = "" if kind is Kind.CREDENTIALS else one_line(_QUOTED_VALUE.sub("Value at '", message), 500)
    return Problem(kind, _join(short, text, kind))


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
    names = (each.__name__ for each in type(error).__mro__)
    kind = next((_KINDS[name] for name in names if name in _KINDS), Kind.INTERNAL)
    return Problem(kind, _join("", one_line(error, 500) or type(error).__name__, kind))


def _join(code: str, text: str, kind: Kind) -> str:
    reason = "; ".join(filter(None, (text.rstrip("."), _REMEDIES.get(kind))))
    return ": ".join(filter(None, (code, reason)))
