"""`outbox_publication` and the checks: what relays need to read the log, on a real server and with real roles."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_outbox.checks.databases import check_databases
from django_outbox.stores import wal
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.wal import Publication, find_obstacles, find_publication
from tests.conftest import ALIASES
from tests.faults.servers import PostgreSQL
from tests.streams.conftest import LOG, execute, publish
from tests.support.publishers import SCRIPTED

pytestmark = pytest.mark.usefixtures("scripted")

OUTBOX: dict[str, Any] = {
    "PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "log"}, "other": {**SCRIPTED, "SOURCE": "log"}}
}

TABLES = ("django_outbox_outboxmessage", "django_outbox_streamposition")

CREATED = "Created the publication django_outbox in the database 'log'.\n"
UNCHANGED = "Nothing was changed: the publication django_outbox is set up.\n"

COLUMNS = "(xid, publisher, id, message_id, type, topic, key, payload, headers, occurred_at)"


def run(*arguments: str, using: str = LOG) -> tuple[str, str]:
    """Return the output, and the text of the CommandError."""
    out, raised = StringIO(), ""
    try:
        call_command("outbox_publication", *arguments, database=using, stdout=out)
    except CommandError as error:
        raised = str(error)
    return out.getvalue(), raised


def read() -> Publication:
    return find_publication(PostgreSQLStore(connections[LOG]))


def checks() -> list[str]:
    found = check_databases(None, databases=[LOG])
    assert all(warning.hint for warning in found)
    return [str(warning.id).removeprefix("django_outbox.") for warning in found]


@contextmanager
def connected(**changes: Any) -> Iterator[None]:
    """Connect with other settings for a while."""
    connection = connections[LOG]
    before = {name: connection.settings_dict[name] for name in changes}
    connection.close()
    connection.settings_dict.update(changes)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


@pytest.fixture
def roles(log: PostgreSQL) -> Iterator[None]:
    """The role that owns the tables, and that of the relays; they have the rights that they need."""
    execute("DROP PUBLICATION IF EXISTS django_outbox")
    execute("CREATE ROLE shop_owner LOGIN; CREATE ROLE shop_relay LOGIN REPLICATION")
    execute("GRANT CREATE ON DATABASE outbox TO shop_owner")
    execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO shop_owner, shop_relay")
    for table in TABLES:
        execute(f"ALTER TABLE {table} OWNER TO shop_owner")
    try:
        yield
    finally:
        execute("DROP PUBLICATION IF EXISTS django_outbox")
        for table in TABLES:
            execute(f"ALTER TABLE {table} OWNER TO relay")
        execute("DROP OWNED BY shop_owner, shop_relay; DROP ROLE shop_owner, shop_relay")
        publish()


@pytest.mark.usefixtures("roles")
class TestRoles:
    def test_the_owner_sets_it_up_and_the_role_of_the_relays_can_read_the_log(self):
        with connected(USER="shop_owner"):
            assert run() == (CREATED, "")
        with connected(USER="shop_relay"):
            assert checks() == []
            assert run() == (UNCHANGED, "")

    def test_a_check_finds_that_the_role_of_the_relays_lacks_a_privilege(self):
        execute("ALTER ROLE shop_relay NOREPLICATION")
        with connected(USER="shop_owner"):
            run()
        with connected(USER="shop_relay"):
            (warning,) = check_databases(None, databases=[LOG])
        assert "does not let the role shop_relay read the log" in warning.msg
        assert "ALTER ROLE shop_relay REPLICATION" in str(warning.hint)

    def test_nothing_is_changed_if_the_role_of_the_session_lacks_a_privilege(self):
        execute("REVOKE CREATE ON DATABASE outbox FROM shop_owner")
        with connected(USER="shop_owner"):
            out, raised = run()
            assert not out
            assert "permission denied for database outbox" in raised
            assert raised.endswith(
                "Run this as the owner of the table, with the privilege CREATE on the database, or use --sql."
            )
            # A script for an administrator can be made nevertheless.
            assert "CREATE PUBLICATION" in run("--sql")[0]
        assert read() == Publication()

    def test_the_log_is_read_as_the_role_that_logs_in_and_not_as_the_one_that_is_assumed(self):
        options = {**connections[LOG].settings_dict["OPTIONS"], "assume_role": "shop_owner"}
        with connected(OPTIONS=options):
            assert run() == (CREATED, "")
            assert checks() == []


@pytest.fixture
def unpublished(log: PostgreSQL) -> Iterator[None]:
    """A server without the publication."""
    execute("DROP PUBLICATION django_outbox")
    yield
    execute("DROP PUBLICATION IF EXISTS django_outbox")
    publish()


@pytest.mark.usefixtures("unpublished")
class TestPublication:
    def test_it_is_created_once(self):
        assert checks() == ["W056"]
        assert run() == (CREATED, "")
        before = read()
        assert not before.missing
        assert run() == (UNCHANGED, "")
        assert read() == before
        assert checks() == []

    @pytest.mark.parametrize(
        ("content", "suffices"),
        [
            ("", False),
            ("FOR TABLE django_outbox_pause", False),
            (f"FOR TABLE django_outbox_outboxmessage {COLUMNS.replace('key, ', '')}", False),
            (f"FOR TABLE django_outbox_outboxmessage {COLUMNS} WHERE (publisher = 'other')", False),
            (f"FOR TABLE django_outbox_outboxmessage {COLUMNS} WITH (publish = 'update')", False),
            (f"FOR TABLE django_outbox_outboxmessage {COLUMNS}, django_outbox_pause", True),
            ("FOR ALL TABLES", True),
            ("FOR TABLES IN SCHEMA public", True),
        ],
    )
    def test_one_that_lacks_something_is_refused_until_it_is_dropped(self, content: str, suffices: bool):
        execute(f"CREATE PUBLICATION django_outbox {content}")
        before = read()
        assert checks() == ([] if suffices else ["W056"])
        out, raised = run()
        assert (out, raised.endswith("DROP PUBLICATION django_outbox")) == (
            (UNCHANGED, False) if suffices else ("", True)
        )
        assert read() == before

    def test_the_printed_sql_sets_it_up_for_sessions_with_any_search_path(self):
        sql, _ = run("--sql")
        assert read() == Publication()
        execute("SET search_path = ''")
        execute(sql)
        execute("RESET search_path")
        assert not read().missing
        assert run("--sql") == ("", "")


@pytest.mark.usefixtures("log")
def test_without_psycopg_3_there_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.stores.wal.find_spec", lambda name: None)
    assert checks() == ["W053"]


@pytest.mark.usefixtures("log")
def test_a_server_that_is_away_is_reported():
    with connected(PORT=1):
        assert run()[1].startswith("Nothing was changed in the database 'log': OperationalError: ")


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("level", ["replica", "minimal"])
def test_postgresql_19_decodes_its_log_on_demand(level: str, monkeypatch: pytest.MonkeyPatch):
    """The server's version and level are constants in the query, because most servers are older."""
    query = wal.CAPABILITIES.replace("current_setting('server_version_num')", "'190000'")
    monkeypatch.setattr(wal, "CAPABILITIES", query.replace("current_setting('wal_level')", f"'{level}'"))
    checks = [obstacle.check for obstacle in find_obstacles(PostgreSQLStore(connections["postgresql"]))]
    assert ("W054" in checks) == (level == "minimal")


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("using", ["default", "mariadb"])
def test_other_databases_have_no_log(using: str):
    _, raised = run(using=using)
    assert "only PostgreSQL has one" in raised
