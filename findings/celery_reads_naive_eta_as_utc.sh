#!/usr/bin/env bash
# Celery 5.7.0 (kombu 5.7.0)
#
# Guess: an `eta` or `expires` without an offset is in the app's time zone: in local time with `timezone =
#   "America/New_York"`, above all with `enable_utc = False`.
# What happens: it is sent without an offset, and the worker reads it as UTC, whatever `timezone` and `enable_utc`
#   say. `datetime.now() + timedelta(seconds=3)` in New York lies hours in the past, so the task runs at once; east of
#   Greenwich it runs hours late. The same `expires` in New York is already over.
# Who is hurt: delayed tasks of projects with naive datetimes (Django with `USE_TZ = False`): reminders, retries and
#   cancellations come at once or hours late; tests on machines in UTC pass.
# Instead: pass an aware datetime, or `countdown`.
# Source: Request.__init__ in celery/worker/request.py, maybe_make_aware in celery/utils/time.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0 amqp==5.4.2 \
    billiard==4.3.2 vine==5.1.0

expected='enable_utc=True: aware eta after 3 s, naive eta at once
enable_utc=False: aware eta after 3 s, naive eta at once'

seen=$("$folder/venv/bin/python" -W ignore - 2>"$folder/log" <<'END'
import datetime
import os
import time

os.environ["TZ"] = "America/New_York"
time.tzset()

from celery import Celery
from celery.contrib.testing.worker import start_worker

for enable_utc in (True, False):
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=True)
    app.conf.update(timezone="America/New_York", enable_utc=enable_utc, worker_hijack_root_logger=False)

    @app.task(name=f"remind-{enable_utc}")
    def remind():
        return time.monotonic()

    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
        waits = []
        for zone in (datetime.timezone.utc, None):
            eta = datetime.datetime.now(zone) + datetime.timedelta(seconds=3)
            began = time.monotonic()
            waits.append(remind.apply_async(eta=eta).get(timeout=20) - began)
    print(
        f"enable_utc={enable_utc}: aware eta after {waits[0]:.0f} s, "
        f"naive eta {'at once' if waits[1] < 2 else f'after {waits[1]:.0f} s'}"
    )
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: Celery 5.7.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
