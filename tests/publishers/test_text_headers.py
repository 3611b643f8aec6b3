"""A message's fields and headers as text."""

import datetime
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from django_outbox.brokers.text_headers import RESERVED, own_headers, text_headers
from tests.support.claimed import make_message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)

OFFSETS = st.integers(-720, 840).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))
KOLKATA = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


@given(st.lists(st.datetimes(timezones=OFFSETS | st.just(datetime.timezone.utc))))
def test_times_are_in_utc(times: list[datetime.datetime]):
    for time in [datetime.datetime(2026, 1, 1, 2, 0, 0, 120, tzinfo=KOLKATA), *times]:
        try:
            in_utc = time.astimezone(datetime.timezone.utc)
        except OverflowError:
            continue
        headers = dict(text_headers(make_message(occurred_at=time)))
        assert headers["outbox-occurred-at"] == in_utc.isoformat()


def test_a_header_cannot_replace_a_field():
    forged = {name.upper(): "forged" for name in RESERVED} | dict.fromkeys(RESERVED, "forged")
    message = make_message(key="k-1", headers=forged)
    assert own_headers(message) == []
    assert "forged" not in dict(text_headers(message)).values()


@settings(max_examples=40)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_text_stays_as_it_is_and_other_values_are_json(headers: dict[str, object]):
    found = dict(own_headers(make_message(headers=headers)))
    for name, value in headers.items():
        if name.lower() not in RESERVED:
            assert (found[name] if isinstance(value, str) else json.loads(found[name])) == value
