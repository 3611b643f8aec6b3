"""Fixtures of the tests of AWS: `pytest_plugins = ["tests.support.aws.fixtures"]`."""

from collections.abc import Iterator

import pytest

from tests.support.aws.answers import AwsAnswers
from tests.support.aws.cases import ACTIONS, Case


@pytest.fixture
def aws() -> Iterator[AwsAnswers]:
    server = AwsAnswers()
    yield server
    server.close()


@pytest.fixture(params=[*ACTIONS])
def case(request: pytest.FixtureRequest, aws: AwsAnswers) -> Iterator[Case]:
    case = Case(request.param, aws)
    yield case
    case.close()
