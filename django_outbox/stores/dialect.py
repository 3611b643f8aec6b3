"""The values that each database stores unchanged, and facts about a connection that the system checks report."""

import uuid

from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.models import OutboxMessage

CODECS = {
    "UTF8": "utf-8",
    **{f"WIN{number}": f"cp{number}" for number in range(1250, 1259)},
    **{f"LATIN{number}": f"latin{number}" for number in range(1, 11)},
}
"""Python's codecs for usual encodings of PostgreSQL. All others have at least ASCII, and JSON in a SQL_ASCII database
has nothing else."""

CHARACTER_SETS = """
SELECT DISTINCT character_set_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = %s AND column_name IN ('type', 'topic', 'key', 'publisher', 'error')
"""


class Dialect:
    """The limits of the database of one connection."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self._vendor = connection.vendor

    @property
    def is_mariadb(self) -> bool:
        return self._vendor == "mysql" and bool(self.connection.mysql_is_mariadb)  # type: ignore[attr-defined]

    @property
    def max_json_depth(self) -> int:
        """Maximum depth of nested JSON that the database stores and Python's decoder reads back."""
        # MariaDB's JSON_VALID refuses JSON that is nested deeper than 32 levels; MySQL's limit is 100.
        return 31 if self._vendor == "mysql" else 500

    @property
    def max_json_key_bytes(self) -> int | None:
        """Maximum length of a key of a JSON object in bytes of UTF-8; None for no limit."""
        return 65_535 if self._vendor == "mysql" else None

    @property
    def json_integers(self) -> range | None:
        """The integers in JSON that the database stores exactly; None for all of them."""
        # MariaDB stores JSON as text.
        return range(-(2**63), 2**64) if self._vendor == "mysql" and not self.is_mariadb else None

    def can_store_uuid(self, value: uuid.UUID) -> bool:
        # MariaDB's type refuses one in 64 of the higher versions.
        return value.int >> 76 & 0xF <= 7 or not self.is_mariadb

    @property
    def encoding(self) -> str:
        if self._vendor != "postgresql":
            return "UTF8"
        self.connection.ensure_connection()
        # The server reports it when a connection is made, so no query is needed.
        with self.connection.wrap_database_errors:
            return str(self.connection.connection.info.parameter_status("server_encoding"))

    def can_store(self, text: str) -> bool:
        """Return whether the database can store all characters of a text, NUL aside."""
        return text.isascii() or self.storable(text) == text

    def storable(self, text: str) -> str:
        """Return a text with a replacement for each character that the database cannot store."""
        text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        if text.isascii():
            return text
        codec = CODECS.get(self.encoding, "ascii")
        return text.encode(codec, "replace").decode(codec)

    # For the system checks.

    @property
    def missing_timeouts(self) -> list[str]:
        """The options of the connection without which a server that vanishes would go unnoticed for minutes."""
        settings = self.connection.settings_dict
        host, options = settings["HOST"], settings["OPTIONS"]
        local = not host or host.startswith("/") or host in {"localhost", "127.0.0.1", "::1"}
        if self._vendor != "postgresql" or local or "service" in options:
            return []
        return [name for name in ("connect_timeout", "tcp_user_timeout") if not options.get(name)]

    @property
    def stores_local_times(self) -> bool:
        """Whether Django stores times in another zone than UTC there."""
        # PostgreSQL stores the instant, whatever the zone of the session.
        return self._vendor != "postgresql" and self.connection.timezone_name != "UTC"

    def find_narrow_character_sets(self) -> set[str]:
        """Return the character sets of the outbox's columns that lack characters of Unicode."""
        if self._vendor != "mysql":
            return set()
        with self.connection.cursor() as session:
            session.execute(CHARACTER_SETS, [OutboxMessage._meta.db_table])
            rows = session.fetchall()
            if not rows:
                # Before the first migration, it is the character set that the table will get.
                session.execute("SELECT @@character_set_database")
                rows = session.fetchall()
        return {name for (name,) in rows} - {"utf8mb4"}
