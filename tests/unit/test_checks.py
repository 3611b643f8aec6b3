"""The system checks, each by its ID."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import django
import pytest
from django.apps import apps
from django.core.checks import CheckMessage, run_checks
from django.db import connections, models
from django.test import override_settings
from django.utils.module_loading import import_string

from django_outbox import OutboxMessage, brokers
from django_outbox.brokers.registry import SHIPPED
from django_outbox.checks import TAG
from tests.conftest import ALIASES
from tests.support.event_models import Purchase
from tests.support.publishers import Script

TASKS = "django_outbox.contrib.django_tasks.OutboxBackend"

needs_tasks = pytest.mark.skipif(django.VERSION < (6, 0), reason="django.tasks is part of Django 6.0 and newer")

SCRIPTED = "tests.support.publishers.ScriptedPublisher"


# Without `databases`, Django 6.1 takes all of them.
def found(outbox: Any = None, databases: list[str] | None = None) -> dict[str, CheckMessage]:
    settings = {} if outbox is None else {"OUTBOX": outbox}
    with override_settings(**settings):
        return {str(m.id): m for m in run_checks(tags=[TAG], databases=databases or [])}


def only(problems: dict[str, CheckMessage], id: str) -> CheckMessage:
    assert list(problems) == [f"django_outbox.{id}"]
    problem = problems[f"django_outbox.{id}"]
    assert problem.hint, "the check has no remedy"
    return problem


def publishers(**default: Any) -> dict[str, Any]:
    return {"PUBLISHERS": {"default": default}}


@pytest.mark.django_db(databases=ALIASES)
def test_valid_settings_give_no_message():
    assert found(databases=ALIASES) == {}


class ToAnotherDatabase:
    """Sends the outbox, or a model that records events, to a database without the outbox's tables, or without one."""

    model: type[models.Model] = OutboxMessage
    denied: str | None = None

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return "mariadb" if model is self.model else None

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        is_denied = app_label.startswith(("django_outbox", "outbox_")) and self.denied in (None, model_name)
        return False if db == "mariadb" and is_denied else None


@pytest.mark.parametrize(
    ("denied", "remedy"),
    [
        (None, '--fake django_outbox zero" and'),
        ("streamposition", "the table 'django_outbox_streamposition' of \"manage.py sqlmigrate django_outbox 0001"),
        ("handledmessage", '--fake outbox_inbox zero" and'),
    ],
)
def test_w046_the_database_of_the_router_lacks_the_tables(settings: Any, denied: str | None, remedy: str):
    with mock.patch.object(ToAnotherDatabase, "denied", denied):
        settings.DATABASE_ROUTERS = [f"{__name__}.ToAnotherDatabase"]
        problem = only(found(), "W046")
    assert "database for writing messages is 'mariadb'" in problem.msg
    assert remedy in str(problem.hint)


def test_w046_the_database_of_a_model_that_records_events_lacks_the_tables(settings: Any):
    installed = mock.patch.object(apps, "get_models", return_value=[Purchase])
    with installed, mock.patch.object(ToAnotherDatabase, "model", Purchase):
        settings.DATABASE_ROUTERS = [f"{__name__}.ToAnotherDatabase"]
        problem = only(found(), "W046")
    assert f"The database of the model {Purchase._meta.label}" in problem.msg


def test_w046_a_database_without_messages_needs_no_tables(settings: Any):
    with mock.patch.object(ToAnotherDatabase, "model", None):
        settings.DATABASE_ROUTERS = [f"{__name__}.ToAnotherDatabase"]
        assert found() == {}


@needs_tasks
def test_w046_the_database_of_tasks_lacks_the_tables(settings: Any):
    with mock.patch.object(ToAnotherDatabase, "model", None):
        settings.DATABASE_ROUTERS = [f"{__name__}.ToAnotherDatabase"]
        settings.TASKS = {"default": {"BACKEND": TASKS, "OPTIONS": {"database": "mariadb"}}}
        problem = only(found(), "W046")
    assert problem.msg.startswith("The database of TASKS['default'] is 'mariadb', but DATABASE_ROUTERS keep tables")


def test_w047_the_tenants_of_a_database_without_messages_need_no_lists(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections["postgresql"], "set_tenant", None, raising=False)
    assert found() == {}


def test_e001_outbox_is_not_set(settings: Any):
    del settings.OUTBOX
    problem = only(found(), "E001")
    assert problem.msg == "OUTBOX is not set."
    assert "ConsolePublisher" in str(problem.hint)


@pytest.mark.parametrize(
    "entry", [SCRIPTED, {}, {"BACKEND": 3}, {"BACKEND": SCRIPTED, "OPTIONS": []}, {"BACKEND": SCRIPTED, "URL": "x"}]
)
def test_e005_invalid_publisher_entry(entry: Any):
    outbox = {"PUBLISHERS": {"default": {"BACKEND": SCRIPTED}, "orders": entry}}
    assert "'orders'" in only(found(outbox), "E005").msg


@pytest.mark.parametrize("value", [0, -1, 2_000_000, "100", True, float("nan")])
def test_e005_invalid_rate_limit_of_a_publisher(value: Any):
    problem = only(found(publishers(BACKEND=SCRIPTED, RATE_LIMIT=value)), "E005")
    assert f"OUTBOX['PUBLISHERS']['default']['RATE_LIMIT'] is {value!r}" in problem.msg
    assert problem.hint == "It must be a number from 0.01 to 1e+06."


def test_every_publisher_and_consumer_of_the_app_is_offered():
    assert all(isinstance(import_string(path), type) for path in SHIPPED)
    rooms = [room.name for room in Path(brokers.__path__[0]).iterdir() if room.is_dir() and room.name != "__pycache__"]
    exported = [
        f"django_outbox.brokers.{room}.{name}"
        for room in rooms
        for name in getattr(import_module(f"django_outbox.brokers.{room}"), "__all__", [])
        if name.endswith(("Publisher", "Consumer"))
    ]
    assert set(exported) <= set(SHIPPED)


def test_e006_missing_driver_and_the_hint_names_the_extra_to_install():
    rabbitmq = "django_outbox.brokers.rabbitmq"
    with mock.patch.dict("sys.modules", {"pika": None, rabbitmq: None}):
        problem = only(found(publishers(BACKEND=f"{rabbitmq}.RabbitMQPublisher")), "E006")
    assert "django-transactional-outbox[rabbitmq]" in str(problem.hint)


@pytest.mark.parametrize("package", ["brokers.console", "handlers"])
def test_e006_a_package_that_needs_no_driver(package: str):
    name = "ConsolePublisher" if package == "brokers.console" else "HandlersPublisher"
    with mock.patch.dict("sys.modules", {f"django_outbox.{package}": None}):
        problem = only(found(publishers(BACKEND=f"django_outbox.{package}.{name}")), "E006")
    assert str(problem.hint) == "Correct the dotted path, or install what it imports."


@pytest.mark.parametrize("backend", ["decimal.Decimal", "json.dumps"])
def test_e007_backend_is_not_a_publisher(backend: str):
    only(found(publishers(BACKEND=backend)), "E007")


def test_e008_publisher_does_not_accept_its_options():
    problem = only(found(publishers(BACKEND=SCRIPTED, OPTIONS={"color": "red"})), "E008")
    assert "unexpected keyword argument 'color'" in problem.msg
    assert found(publishers(BACKEND=SCRIPTED, OPTIONS={"colour": "red"})) == {}
    without_options = "django_outbox.brokers.memory.MemoryPublisher"
    problem = only(found(publishers(BACKEND=without_options, OPTIONS={"color": "red"})), "E008")
    assert "unexpected keyword argument 'color'" in problem.msg


@pytest.mark.django_db
def test_e010_database_of_an_unsupported_vendor():
    with mock.patch.object(connections["default"], "vendor", "oracle"):
        assert "oracle" in only(found(databases=["default"]), "E010").msg


@pytest.mark.django_db(databases=["mariadb"])
def test_e012_database_that_stores_local_times():
    connection = connections["mariadb"]
    with mock.patch.dict(connection.settings_dict, {"TIME_ZONE": "Europe/Zurich"}):
        for name in ("timezone", "timezone_name"):
            connection.__dict__.pop(name, None)
        problems = found(databases=["mariadb"])
    for name in ("timezone", "timezone_name"):
        connection.__dict__.pop(name, None)
    only(problems, "E012")


@pytest.mark.django_db(databases=["mariadb"], transaction=True)
def test_e013_table_with_a_character_set_that_lacks_characters():
    table = OutboxMessage._meta.db_table
    with connections["mariadb"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} MODIFY error LONGTEXT CHARACTER SET latin1 NOT NULL")
        try:
            problem = only(found(databases=["mariadb"]), "E013")
        finally:
            cursor.execute(f"ALTER TABLE {table} MODIFY error LONGTEXT CHARACTER SET utf8mb4 NOT NULL")
    assert "latin1" in problem.msg
    assert "utf8mb4" in str(problem.hint)


def test_e015_autocommit_is_off():
    with mock.patch.dict(connections["postgresql"].settings_dict, {"AUTOCOMMIT": False}):
        problem = only(found(), "E015")
    assert "'postgresql'" in problem.msg
    assert "transaction.atomic()" in str(problem.hint)


@override_settings(DATABASE_ROUTERS=["tests.support.routers.NotOnMariaDB"])
def test_e015_autocommit_may_be_off_on_a_database_without_the_outbox():
    with mock.patch.dict(connections["mariadb"].settings_dict, {"AUTOCOMMIT": False}):
        assert found() == {}


def test_checks_of_the_settings_send_no_query():
    # A check may catch the error, and an open connection would not connect again.
    with mock.patch("django.db.backends.base.base.BaseDatabaseWrapper.ensure_connection") as connect:
        connect.side_effect = AssertionError
        run_checks(tags=[TAG], databases=[])
    connect.assert_not_called()


def test_checking_the_publishers_publishes_nothing(scripted: Script):
    found(publishers(BACKEND=SCRIPTED))
    assert scripted.batches == []


REMOTE = {"HOST": "db.example.com"}


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (REMOTE, ["connect_timeout", "tcp_user_timeout"]),
        ({**REMOTE, "OPTIONS": {"connect_timeout": 5}}, ["tcp_user_timeout"]),
        ({**REMOTE, "OPTIONS": {"connect_timeout": 5, "tcp_user_timeout": 8000}}, []),
        ({**REMOTE, "OPTIONS": {"service": "shop"}}, []),
        ({"HOST": "127.0.0.1"}, []),
        ({"HOST": "/run/postgresql"}, []),
    ],
)
def test_w016_remote_postgresql_without_timeouts(settings: dict[str, Any], missing: list[str]):
    with mock.patch.dict(connections["postgresql"].settings_dict, {"OPTIONS": {}, **settings}):
        problems = run_checks(tags=[TAG], databases=[], include_deployment_checks=True)
        assert "django_outbox.W016" not in {each.id for each in run_checks(tags=[TAG], databases=[])}
    warnings = [problem for problem in problems if problem.id == "django_outbox.W016"]
    assert len(warnings) == bool(missing)
    for warning in warnings:
        assert f"no {' and no '.join(missing)} in its OPTIONS" in warning.msg
        assert "tcp_user_timeout" in str(warning.hint)


def archive(folder: Path, **storages: Any) -> Any:
    return override_settings(
        STORAGES={
            "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
            "outbox_archive": {
                "BACKEND": "django.core.files.storage.FileSystemStorage",
                "OPTIONS": {"location": str(folder)},
            },
            **storages,
        }
    )


def archiving(value: Any, **settings: Any) -> dict[str, Any]:
    return {**publishers(BACKEND=SCRIPTED), "ARCHIVE": value, **settings}


@pytest.mark.parametrize(
    ("value", "problem", "hint"),
    [
        ("outbox_archive", "OUTBOX['ARCHIVE'] is 'outbox_archive'.", '{"storage": "outbox_archive"}'),
        ({}, "OUTBOX['ARCHIVE'] has no 'storage'.", "STORAGES"),
        ({"storage": 3}, "OUTBOX['ARCHIVE']['storage'] is 3.", "STORAGES"),
        ({"storage": "a", "max_row": 1}, "has an unknown key 'max_row'.", "Did you mean max_rows? Known keys: "),
        ({"storage": "a", "max_rows": 0}, "OUTBOX['ARCHIVE']['max_rows'] is 0.", "a whole number of at least 1"),
    ],
    ids=["no dict", "no storage", "wrong storage", "unknown key", "rows"],
)
def test_e003_invalid_archive(value: Any, problem: str, hint: str):
    found_problem = only(found(archiving(value)), "E003")
    assert problem in found_problem.msg
    assert hint in str(found_problem.hint)


def test_e017_storage_of_the_archive_cannot_be_constructed(tmp_path: Path):
    with archive(
        tmp_path, broken={"BACKEND": "nowhere.Storage"}, wrong={"BACKEND": "builtins.int", "OPTIONS": {"a": 1}}
    ):
        assert "nowhere" in only(found(archiving({"storage": "broken"})), "E017").msg
        only(found(archiving({"storage": "wrong"})), "E017")


@pytest.mark.parametrize("path", ["nowhere.redact", "django_outbox.utils.text.MAX_IDS"])
def test_e070_the_function_that_redacts_cannot_be_used(path: str):
    outbox = publishers(BACKEND="django_outbox.brokers.memory.MemoryPublisher")
    assert repr(path) in only(found({**outbox, "REDACT": path}), "E070").msg
    assert found({**outbox, "REDACT": "django_outbox.utils.text.shorten"}) == {}
    assert found({**outbox, "REDACT": "redact"}).keys() == {"django_outbox.E003"}


@contextmanager
def link_model(on_delete: Any = models.CASCADE, *, managed: bool = True, **options: Any) -> Iterator[None]:
    """A model of an installed app with a foreign key to messages."""
    meta = type("Meta", (), {"app_label": "contenttypes", "default_related_name": "+", "managed": managed})
    key = models.ForeignKey(OutboxMessage, on_delete, **options)
    type("Link", (models.Model,), {"__module__": __name__, "Meta": meta, "message": key})
    try:
        yield
    finally:
        del apps.all_models["contenttypes"]["link"]
        apps.clear_cache()


@pytest.mark.parametrize("on_delete", [models.CASCADE, models.SET_NULL, models.DO_NOTHING, models.PROTECT])
def test_e033_a_foreign_key_keeps_messages_from_being_deleted(on_delete: Any):
    with link_model(on_delete, null=True):
        problem = only(found(publishers(BACKEND=SCRIPTED)), "E033")
    assert problem.msg.startswith("contenttypes.Link.message is a foreign key to OutboxMessage.")


def test_e033_is_silent_without_a_constraint_and_if_the_database_deletes():
    for options in ({"db_constraint": False}, {"managed": False}):
        with link_model(**options):
            assert found(publishers(BACKEND=SCRIPTED)) == {}
    for on_delete in [getattr(models, name) for name in ("DB_CASCADE", "DB_SET_NULL") if hasattr(models, name)]:
        with link_model(on_delete, null=True):
            assert found(publishers(BACKEND=SCRIPTED)) == {}
