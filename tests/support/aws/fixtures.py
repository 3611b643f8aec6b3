"""Fixtures of the tests of AWS: `pytest_plugins = ["tests.support.aws.fixtures"]`."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.support.aws.answers import AwsAnswers, Queue


@pytest.fixture
def aws() -> Iterator[AwsAnswers]:
    with closing(AwsAnswers()) as server:
        yield server


@pytest.fixture
def queue(aws: AwsAnswers) -> Iterator[Queue]:
    with ExitStack() as stack:
        yield Queue(aws, stack)
