"""PostgreSQL in other encodings: characters that they lack are refused by `enqueue` and replaced in errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import Warning
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_outbox import InvalidMessage, OutboxMessage, enqueue, enqueue_many
from django_outbox.checks.databases import _check_characters
from django_outbox.models import KeyLock
from django_outbox.stores.dialect import Dialect
from tests.conftest import ALIASES
from tests.support.databases import another_alias
from tests.support.messages import claim, count, row, settle, write

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

EURO = "\N{EURO SIGN}"


@pytest.fixture(scope="module")
def names(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, str]]:
    """Databases by their encoding."""
    with django_db_blocker.unblock(), another_alias("postgresql") as alias, connections[alias].cursor() as cursor:
        test_database = connections[alias].settings_dict["NAME"]
        names = {encoding: f"{test_database}_{encoding.lower()}" for encoding in ("LATIN1", "SQL_ASCII")}
        for encoding, name in names.items():
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')
            cursor.execute(
                f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
            with connection_to(name) as own, connections[own].schema_editor() as editor:
                editor.create_model(OutboxMessage)
                editor.create_model(KeyLock)
        yield names
        for name in names.values():
            cursor.execute(f'DROP DATABASE "{name}"')


def connection_to(name: str) -> Any:
    return another_alias("postgresql", dbname=name)


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def encoding(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def using(names: dict[str, str], encoding: str) -> Iterator[str]:
    with connection_to(names[encoding]) as alias:
        yield alias
        OutboxMessage.objects.using(alias).all().delete()


@pytest.mark.parametrize("field", ["type", "key", "topic", "payload", "headers"])
def test_a_character_that_the_encoding_lacks_is_refused_and_the_transaction_can_continue(
    using: str, encoding: str, field: str
):
    values: dict[str, Any] = {"payload": {"a": [f"5 {EURO}"]}, "headers": {EURO: 1}}
    arguments: dict[str, Any] = {"type": "order.created", "payload": 1, field: values.get(field, EURO)}
    with transaction.atomic(using=using):
        with CaptureQueriesContext(connections[using]) as queries:
            with pytest.raises(InvalidMessage, match=r"contains U\+20AC, which the database") as info:
                enqueue(**arguments, using=using)
            with pytest.raises(InvalidMessage, match=encoding):
                enqueue_many([OutboxMessage(**arguments)], using=using)
        assert len(queries) == 0
        assert info.value.path == ('["a"][0]' if field == "payload" else "")
        enqueue("order.created", 1, using=using)
    assert count(using) == 1


def test_a_question_mark_replaces_such_a_character_in_an_error(using: str, encoding: str):
    failed, retried = write(using, 2)
    with claim(using) as batch:
        settle(using, batch, failed=[(failed, f"caf\xe9 {EURO}\x00")], retried=[(retried, "x" * 5000, 1.0, EURO)])
    kept = row(using, failed).error
    assert kept == ("caf\xe9 ??" if encoding == "LATIN1" else "caf? ??")
    assert row(using, retried).error == "x" * 3999 + "?"
    assert row(using, retried).error_class == "?"


def test_the_system_check_warns_about_the_encoding(using: str, encoding: str):
    (problem,) = _check_characters(Dialect(connections[using]))
    assert isinstance(problem, Warning)
    assert (problem.id, encoding in problem.msg) == ("django_outbox.W014", True)
    assert "UTF8" in str(problem.hint)
    assert [*_check_characters(Dialect(connections["postgresql"]))] == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text(st.characters(max_codepoint=255)))
@example(text="\xa0\xff\x80 \\u20ac")
def test_any_text_is_either_read_back_unchanged_or_refused(using: str, encoding: str, text: str):
    type = "a" + "".join(filter(str.isprintable, text))
    with transaction.atomic(using=using):
        try:
            saved = enqueue(type, {text: [text]}, headers={f"a{text}": text}, key=text, using=using)
        except InvalidMessage:
            assert "\x00" in text or not Dialect(connections[using]).can_store(text)
            return
    with claim(using) as batch:
        (message,) = [message for message in batch.messages if message.id == saved.pk]
        assert (message.type, message.key, message.headers) == (type, text, {f"a{text}": text})
        assert json.loads(message.payload) == {text: [text]}
        settle(using, batch, processed=[message.id], delete_processed=True)
    assert text.isascii() or encoding == "LATIN1"
