"""Fixtures of tests that make a Celery app: `pytest_plugins = ["tests.support.celery.app_fixtures"]`."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from django.test import override_settings

from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS, MakeApp, cleaned_up, close, new_prefix


@pytest.fixture
def prefix() -> Iterator[str]:
    name = new_prefix()
    with cleaned_up(name):
        yield name


@pytest.fixture
def make(prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeApp]:
    with ExitStack() as stack, override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}):

        def make_app(url: str, **conf: Any) -> Celery:
            made = celery_app.make_app(url, prefix, **conf)
            monkeypatch.setattr(celery_app, "app", made)
            stack.callback(close, made)
            return made

        yield make_app
