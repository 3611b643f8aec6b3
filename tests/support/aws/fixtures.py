"""Fixtures of the tests of AWS: `pytest_plugins = ["tests.support.aws.fixtures"]`."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.aws.answers import AwsAnswers, Queue


@pytest.fixture
def aws() -> Iterator[AwsAnswers]:
    server = AwsAnswers()
    yield server
    server.close()


@pytest.fixture
def queue(aws: AwsAnswers) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(aws, stack)
