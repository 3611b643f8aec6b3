"""Numbers and ids as log lines and commands show them."""

import pytest

from django_outbox.wording import MAX_IDS, counted, some_ids


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
