"""Fixtures that every test may use."""

import gc
import signal
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from celery import _state
from django.db import connections
from django.test import override_settings
from hypothesis import settings
from pytest_django.plugin import DjangoDbBlocker

from tests.settings import DATABASES
from tests.support.flushing import close_sessions, flush_quickly, prepare
from tests.support.kafka.shared import Keeper, start_keeper
from tests.support.ordering import begin_with_long_tests
from tests.support.publishers import SCRIPTED, Script
from tests.support.seconds import FolderSeconds

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its jobs in the background ignore it, and so would the processes that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take long where other tests run on the same processors, or where coverage is measured.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

flush_quickly()

KEEPER = pytest.StashKey[Keeper]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FolderSeconds())
    # The processes of pytest-xdist inherit its address.
    keeper = start_keeper()
    if keeper:
        config.stash[KEEPER] = keeper


def pytest_unconfigure(config: pytest.Config) -> None:
    if KEEPER in config.stash:
        config.stash[KEEPER].end()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = begin_with_long_tests(items, config.workerinput["workercount"])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector modules and tests, which stay: it would examine them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


ALIASES = list(DATABASES)
"""The databases that the tests run on: `mysql` is one of them if MYSQL_URL is set."""

LOCKING = [alias for alias in ALIASES if alias != "default"]
"""The databases where a claim is a transaction with row locks."""

MYSQL_AND_MARIADB = [alias for alias in LOCKING if alias != "postgresql"]
"""The databases that share one implementation."""


@pytest.fixture(params=ALIASES, ids=["sqlite", *LOCKING])
def using(request: pytest.FixtureRequest) -> str:
    """Run the test once on each database; it must be marked with `django_db(databases=ALIASES)`."""
    alias: str = request.param
    return alias


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Also prepare the databases of servers, as far as the tests need them."""
    with django_db_blocker.unblock():
        for connection in connections.all():
            if connection.settings_dict["NAME"] == connection.settings_dict["TEST"]["NAME"]:
                prepare(connection)
    yield
    close_sessions()


@pytest.fixture(autouse=True)
def fresh_figures() -> None:
    """Forget the figures of the previous test, which `status` would return for two seconds."""
    # The package has a function of the module's name.
    import_module("django_outbox.monitoring.status")._cache.clear()
    import_module("django_outbox.monitoring.failures")._tallies.clear()


@pytest.fixture(autouse=True)
def no_celery_app() -> None:
    """Forget the app that an earlier test made the current one: the checks would find its mistakes."""
    state: Any = _state
    state._tls.current_app = state.default_app = None


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Script]:
    """The script of all scripted publishers, under the setting OUTBOX of the test's module.

    By default, a scripted publisher is the only publisher. A module uses it for all its tests with
    `pytest.mark.usefixtures("scripted")`.
    """
    outbox = getattr(request.module, "OUTBOX", {"PUBLISHERS": {"default": SCRIPTED}})
    with Script() as script, override_settings(OUTBOX=outbox):
        yield script
