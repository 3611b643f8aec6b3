"""The system checks, each by its id."""

from typing import Any
from unittest import mock

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connections
from django.test import override_settings

from django_outbox import OutboxMessage
from tests.publishers import ScriptedPublisher

SCRIPTED = "tests.publishers.ScriptedPublisher"


def found(outbox: Any = None, databases: list[str] | None = None) -> dict[str, CheckMessage]:
    settings = {} if outbox is None else {"OUTBOX": outbox}
    with override_settings(**settings):
        return {str(m.id): m for m in run_checks(databases=databases) if str(m.id).startswith("django_outbox.")}


def only(problems: dict[str, CheckMessage], id: str) -> CheckMessage:
    assert list(problems) == [f"django_outbox.{id}"]
    problem = problems[f"django_outbox.{id}"]
    assert problem.hint, "a check without a remedy"
    return problem


def publishers(**default: Any) -> dict[str, Any]:
    return {"PUBLISHERS": {"default": default}}


@pytest.mark.django_db(databases=["default", "postgresql", "mariadb"])
def test_right_settings_give_no_message():
    assert found(databases=["default", "postgresql", "mariadb"]) == {}


@pytest.mark.parametrize("value", ["console", 3, []])
def test_e001_outbox_is_no_dict(value: Any):
    assert "not a dict" in only(found(value), "E001").msg


def test_e001_outbox_is_not_set(settings: Any):
    del settings.OUTBOX
    problem = only(found(), "E001")
    assert problem.msg == "OUTBOX is not set."
    assert "ConsolePublisher" in str(problem.hint)


def test_e002_unknown_key_lists_the_known_ones():
    problem = only(found({**publishers(BACKEND=SCRIPTED), "BATCHSIZE": 3}), "E002")
    assert "'BATCHSIZE'" in problem.msg
    assert "BATCH_SIZE" in str(problem.hint)


def test_e003_wrong_value():
    assert "OUTBOX['BATCH_SIZE'] is 0" in only(found({**publishers(BACKEND=SCRIPTED), "BATCH_SIZE": 0}), "E003").msg


@pytest.mark.parametrize("outbox", [{}, {"PUBLISHERS": {}}, {"PUBLISHERS": {"other": {"BACKEND": SCRIPTED}}}])
def test_e004_no_default_publisher(outbox: dict[str, Any]):
    only(found(outbox), "E004")


@pytest.mark.parametrize(
    "entry", [SCRIPTED, {}, {"BACKEND": 3}, {"BACKEND": SCRIPTED, "OPTIONS": []}, {"BACKEND": SCRIPTED, "URL": "x"}]
)
def test_e005_publisher_entry_of_the_wrong_shape(entry: Any):
    outbox = {"PUBLISHERS": {"default": {"BACKEND": SCRIPTED}, "orders": entry}}
    assert "'orders'" in only(found(outbox), "E005").msg


@pytest.mark.parametrize("backend", ["nowhere.Publisher", "tests.publishers.Missing", "Publisher"])
def test_e006_backend_cannot_be_imported(backend: str):
    assert backend in only(found(publishers(BACKEND=backend)), "E006").msg


def test_e006_missing_driver_names_the_extra_to_install():
    rabbitmq = "django_outbox.publishers.rabbitmq"
    with mock.patch.dict("sys.modules", {"pika": None, rabbitmq: None}):
        problem = only(found(publishers(BACKEND=f"{rabbitmq}.RabbitMQPublisher")), "E006")
    assert "django-transactional-outbox[rabbitmq]" in str(problem.hint)


@pytest.mark.parametrize("backend", ["decimal.Decimal", "json.dumps"])
def test_e007_backend_is_no_publisher(backend: str):
    only(found(publishers(BACKEND=backend)), "E007")


def test_e008_publisher_refuses_its_options():
    problem = only(found(publishers(BACKEND=SCRIPTED, OPTIONS={"color": "red"})), "E008")
    assert "unexpected keyword argument 'color'" in problem.msg
    assert found(publishers(BACKEND=SCRIPTED, OPTIONS={"colour": "red"})) == {}


def test_e008_is_told_for_each_publisher():
    entry = {"BACKEND": SCRIPTED, "OPTIONS": {"color": 1}}
    with override_settings(OUTBOX={"PUBLISHERS": {"default": entry, "other": entry}}):
        assert [m.id for m in run_checks()].count("django_outbox.E008") == 2


def test_e009_use_tz_is_off():
    with override_settings(USE_TZ=False):
        only(found(), "E009")


def test_e010_database_of_an_unknown_kind():
    with mock.patch.object(connections["default"], "vendor", "oracle"):
        assert "oracle" in only(found(databases=["default"]), "E010").msg


@pytest.mark.django_db(databases=["postgresql"])
def test_e011_server_without_skip_locked():
    with mock.patch.object(connections["postgresql"].features, "has_select_for_update_skip_locked", new=False):
        assert "SKIP LOCKED" in only(found(databases=["postgresql"]), "E011").msg


@pytest.mark.django_db
def test_e011_sqlite_without_returning():
    with mock.patch.object(connections["default"].features, "can_return_columns_from_insert", new=False):
        assert "RETURNING" in only(found(databases=["default"]), "E011").msg


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
def test_e013_table_that_cannot_hold_every_character():
    table = OutboxMessage._meta.db_table
    with connections["mariadb"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} MODIFY error LONGTEXT CHARACTER SET latin1 NOT NULL")
        try:
            problem = only(found(databases=["mariadb"]), "E013")
        finally:
            cursor.execute(f"ALTER TABLE {table} MODIFY error LONGTEXT CHARACTER SET utf8mb4 NOT NULL")
    assert "latin1" in problem.msg
    assert "utf8mb4" in str(problem.hint)


def test_settings_checks_ask_no_database():
    with mock.patch("django.db.backends.base.base.BaseDatabaseWrapper.connect", side_effect=AssertionError):
        run_checks()


def test_constructing_publishers_for_the_check_publishes_nothing():
    ScriptedPublisher.reset()
    found(publishers(BACKEND=SCRIPTED))
    assert ScriptedPublisher.batches == []
