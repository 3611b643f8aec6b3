"""A test that never commits sees its own messages delivered."""

import pytest

from tests.conftest import ALIASES
from tests.streams.sources import PG, STREAMED, drain
from tests.support.messages import put, write
from tests.support.publishers import Script

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.usefixtures("scripted")]

OUTBOX = STREAMED


def test_a_drain_delivers_what_the_open_transaction_has_written(scripted: Script):
    ids = put(2, PG, keys=1)
    assert drain() == 2
    ids += write(PG, 2, key="k0")
    assert drain() == 2
    assert drain() == 0
    assert scripted.published() == ids
