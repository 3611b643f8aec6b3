"""The retry policy of a handler takes precedence over the publisher's."""

import logging
import re
from typing import Any

import pytest
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.handlers import Reject, handler
from django_outbox.messages import Message
from django_outbox.models import Status
from tests.conftest import ALIASES
from tests.support.effects import HANDLERS, deliver_once, drain, drain_all
from tests.support.messages import put, row

pytest_plugins = ["tests.support.handlers_fixtures"]
pytestmark = [pytest.mark.django_db(databases=ALIASES, transaction=True), pytest.mark.usefixtures("handlers")]


@pytest.fixture
def using() -> str:
    """Who decides about a retry does not depend on the database."""
    return "postgresql"


ENTRY: dict[str, Any] = {
    **HANDLERS,
    # The messages of a test are one batch, however busy the machine is.
    "OPTIONS": {"batch_seconds": 60},
    "RETRY": {**HANDLERS["RETRY"], "MAX_ATTEMPTS": 4, "EXCLUDE": [KeyError]},
}

OUTBOX = {"PUBLISHERS": {"default": ENTRY}}


class CardDeclined(Exception):
    pass


def attempts_of(using: str, error: BaseException, *, transaction: bool = True, **arguments: Any) -> int:
    """The number of calls of a handler with this policy for a message if it always raises this error."""

    @handler("t", **arguments)
    def work(payload: Any, message: Message) -> None:
        raise error

    (id,) = put(1, using)
    with override_settings(OUTBOX={"PUBLISHERS": {"default": {**ENTRY, "OPTIONS": {"transaction": transaction}}}}):
        drain_all(using)
    assert row(using, id).status is Status.FAILED
    return row(using, id).attempts


@pytest.mark.parametrize("transaction", [True, False])
def test_a_handler_has_its_own_number_of_attempts(using: str, transaction: bool):
    assert attempts_of(using, ValueError(), transaction=transaction, retry={"MAX_ATTEMPTS": 2}) == 2


@pytest.mark.parametrize(
    ("error", "retry", "attempts"),
    [(ValueError(), None, 4), (CardDeclined(), {"EXCLUDE": [CardDeclined]}, 1), (KeyError(), {"MAX_ATTEMPTS": 2}, 1)],
    ids=["no policy", "an excluded exception", "one that the publisher excludes"],
)
def test_keys_that_it_leaves_out_are_the_publishers(using: str, error: Exception, retry: Any, attempts: int):
    assert attempts_of(using, error, retry=retry) == attempts


def test_each_handler_of_a_type_has_its_own_policy(using: str):
    for number in (1, 2, 3):

        @handler("t", name=f"h{number}", retry={"MAX_ATTEMPTS": number})
        def work(payload: Any, message: Message) -> None:
            raise ValueError

    put(1, using)
    drain_all(using)
    failed = OutboxMessage.objects.using(using).filter(failed_at__isnull=False)
    assert {message.topic: message.attempts for message in failed} == {"h1": 1, "h2": 2, "h3": 3}


def test_the_wait_is_that_of_the_handler(using: str):
    @handler("t", retry={"DELAY": 3600, "MAX_DELAY": 3600})
    def work(payload: Any, message: Message) -> None:
        raise ValueError

    (id,) = put(1, using)
    drain(using)
    found = row(using, id)
    assert found.attempts == 1
    assert found.available_at is not None
    assert found.last_error_at is not None
    assert 3000 < (found.available_at - found.last_error_at).total_seconds() < 4000


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (3, "@handler: retry is 3. It must be a dict such as"),
        ({"MAX_ATTEMPT": 3}, "@handler: retry has an unknown key 'MAX_ATTEMPT'. Did you mean MAX_ATTEMPTS?"),
        ({"MAX_ATTEMPTS": 0}, "@handler: retry['MAX_ATTEMPTS'] is 0. It must be a whole number of at least 1."),
        ({"EXCLUDE": [3]}, "@handler: retry['EXCLUDE'][0] is 3. It must be an exception class or its dotted path."),
        ({"TYPES": {}}, "@handler: retry has an unknown key 'TYPES'."),
    ],
)
def test_a_wrong_policy_is_an_error_at_registration_that_names_the_field_and_the_remedy(retry: Any, text: str):
    with pytest.raises(ValueError, match=re.escape(text)):
        handler("t", retry=retry)


def test_the_first_failure_of_a_cause_is_logged_with_the_traceback(using: str, caplog: pytest.LogCaptureFixture):
    @handler("t")
    def work(payload: int, message: Message) -> None:
        if payload:
            raise ValueError(f"order {payload} is unknown")
        raise Reject("it is not for sale")

    put(3, using)
    with caplog.at_level(logging.WARNING, logger="django_outbox"):
        deliver_once(using)
    (retried,) = [each for each in caplog.records if each.__dict__["event"] == "relay.messages_retried"]
    (failed,) = [each for each in caplog.records if each.__dict__["event"] == "relay.messages_failed"]
    assert retried.exc_info is not None
    assert str(retried.exc_info[1]) == "order 1 is unknown"
    assert retried.__dict__["count"] == 2
    # It is the handler's decision, not an error.
    assert failed.exc_info is None
