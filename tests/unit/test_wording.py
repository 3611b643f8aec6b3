"""Numbers and ids as log lines and commands show them."""

import pytest

from django_outbox.utils.text import MAX_IDS, counted, duration, some_ids


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (2000, "2,000 messages")]
)
def test_a_number_has_its_noun_in_the_right_form(number: int, text: str):
    assert counted(number, "message") == text


def test_an_irregular_plural_can_be_given():
    assert [counted(number, "copy", "copies") for number in (1, 2)] == ["1 copy", "2 copies"]


def test_only_the_first_ids_are_listed():
    assert some_ids([7]) == "id 7"
    assert some_ids([7, 8]) == "ids 7, 8"
    assert some_ids(range(MAX_IDS)) == "ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert some_ids(range(MAX_IDS + 1)) == "ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.44, "0.4 s"),
        (7, "7 s"),
        (47.4, "47 s"),
        (60, "1 min"),
        (95, "1 min 35 s"),
        (720, "12 min"),
        (745, "12 min"),
        (3600, "1 h"),
        (11_100, "3 h 5 min"),
        (187_200, "2 d 4 h"),
        (864_000, "10 d"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str):
    assert duration(seconds) == text
