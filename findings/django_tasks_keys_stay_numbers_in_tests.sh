#!/usr/bin/env bash
# django-tasks 0.12.0, the backport of Django's tasks, and django-tasks-db 0.13.0, with Django 5.2.9
#
# Guess: the immediate backend, which is for tests and development, passes arguments through JSON as a stored task
#   does: tuples arrive as lists, and the keys of dicts as strings.
# What happens: it turns tuples into lists, but leaves keys as they are. A task that looks up `prices[1]` passes all
#   tests, and fails with KeyError in the worker, where the key is "1". `django.tasks` of Django 6.1 normalizes alike.
# Who is hurt: tasks with dicts by primary key, which is how projects pass quantities, prices and totals.
# Instead: send a list of pairs, or test with `json.loads(json.dumps(arguments))`.
# Source: normalize_json in django_tasks/utils.py and in django/utils/json.py
# Seen: see `expected` below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check django==5.2.9 django-tasks==0.12.0 \
    django-tasks-db==0.13.0

mkdir "$folder/shop"
touch "$folder/shop/__init__.py"
cat >"$folder/shop/tasks.py" <<'END'
from django_tasks import task


@task
def price_of_first(prices, sizes):
    return {"keys": [type(key).__name__ for key in prices], "sizes": type(sizes).__name__, "found": 1 in prices}
END
cat >"$folder/shop/settings.py" <<'END'
INSTALLED_APPS = ["django_tasks", "django_tasks_db"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
TASKS = {
    "default": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "tests": {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"},
}
USE_TZ = True
END

expected="immediate: {'keys': ['int'], 'sizes': 'list', 'found': True}
stored: {'keys': ['str'], 'sizes': 'list', 'found': False}"

seen=$(cd "$folder" && DJANGO_SETTINGS_MODULE=shop.settings "$folder/venv/bin/python" - 2>"$folder/log" <<'END'
import sys

sys.path.insert(0, ".")

import django

django.setup()

from django.core.management import call_command
from shop.tasks import price_of_first

call_command("migrate", verbosity=0)
immediate = price_of_first.using(backend="tests").enqueue({1: 990}, (2, 3))
stored = price_of_first.enqueue({1: 990}, (2, 3))
call_command("db_worker", batch=True, startup_delay=False, verbosity=0)
stored.refresh()
print(f"immediate: {immediate.return_value}")
print(f"stored: {stored.return_value}")
END
)
printf '%s\n' "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'changed: django-tasks 0.12.0 does not do this any more. Expected:\n%s\n' "$expected" >&2
    exit 1
fi
echo reproduced
