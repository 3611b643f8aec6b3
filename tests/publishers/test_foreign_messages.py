"""Messages that other programs wrote: each publisher refuses what it cannot send, and sends the others."""

import datetime
import json
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox.messages import ACCEPTED, BLOCKED
from django_outbox.relay.sending.isolation import BROKER_RESPONDS
from tests.publishers.test_contract import SUBJECTS, publish_in_parts
from tests.support.claimed import make_message
from tests.support.json_values import nested

CASES = [(name, "plain") for name in SUBJECTS]
CASES += [(name, "cloudevents") for name in ("http", "kafka", "nats", "rabbitmq")]

HOSTILE = ["", "\n", "\x00", "\r\n\r\n", "\x7f\x9b", "\u202e", "\U0001f600", "x" * 300, "%", "{}", " ", "\u2028"]
texts = st.sampled_from(HOSTILE) | st.text()
names = texts | st.sampled_from(
    ["content-type", "Host", "traceparent", "message_id", "ce-id", "Nats-Msg-Id", "x-delay", "id", "data", "CC"]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**4000, -(2**63), 2**64, 1e308, float("inf"), -0.0, nested(90), nested(900), nested(90, dict)])
    | st.floats(allow_nan=False)
    | texts
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
headers = st.dictionaries(names, values, max_size=4)
times = st.datetimes(timezones=st.just(datetime.timezone.utc))
payloads = st.sampled_from(
    [b"", b"null", b"[" * 5000 + b"]" * 5000, b'"\\ud800"', b'{"a": 1e999}', b"7" * 5000, b" \r\n\t1", b"{", b"\x00"]
) | values.map(lambda value: json.dumps(value).encode())
fields = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "type": texts,
        "key": texts,
        "payload": payloads,
        "headers": headers,
        "occurred_at": times,
        "attempts": st.integers(-(2**63), 2**63 - 1),
        "error_class": texts,
    },
)


@pytest.mark.parametrize(("name", "format"), CASES, ids=["-".join(each) for each in CASES])
def test_a_message_that_cannot_be_sent_is_refused_and_others_are_accepted(name: str, format: str):
    options = {} if format == "plain" else {"format": format, "source": "/shop"}
    with closing(SUBJECTS[name]()) as subject:
        publisher = subject.publisher(**options)

        @settings(max_examples=25, deadline=None)
        @given(st.lists(fields, min_size=1, max_size=3))
        def check(foreign: list[dict[str, Any]]) -> None:
            first, last = subject.messages(b"1", b"2")
            messages = [first, *(make_message(subject.topic, **each) for each in foreign), last]
            outcomes = publish_in_parts(publisher, messages)
            assert outcomes[0] is outcomes[-1] is ACCEPTED
            keys = [each.get("key", "") for each in foreign]
            behind = [BLOCKED] if len(keys) > len({*keys}) else []
            assert all(outcome in behind or (outcome and outcome.kind in BROKER_RESPONDS) for outcome in outcomes)

        check()
