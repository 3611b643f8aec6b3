"""The admin's pages under other themes, and a site under django-silk and django-debug-toolbar."""

import json
from typing import Any

import pytest

from tests.stacks.support import Project

PACKAGES = (
    "Django==6.1.3",
    "psycopg[binary]==3.3.9",
    "django-unfold==0.110.0",
    "django-jazzmin==3.0.5",
    "django-silk==5.6.0",
    "django-debug-toolbar==8.0.0",
)
POSTGRESQL = True

HANDLER = """\
from django_outbox.handlers import handler


@handler("order.created")
def refuse(payload, message):
    raise ValueError("the shop is closed")
"""

BROWSE = """
import json
from django.contrib.auth.models import User
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import reverse
from django_outbox.models import OutboxMessage

client = Client(headers={"accept": "text/html"})
client.force_login(User.objects.create_superuser("ada"))
id = OutboxMessage.objects.values_list("pk", flat=True)[0]
cause = "using=default&publisher=default&error_class=ValueError&type=order.created"
paths = {
    "overview": reverse("admin:django_outbox_overview_changelist"),
    "list": reverse("admin:django_outbox_outboxmessage_changelist") + "?state=all",
    "message": reverse("admin:django_outbox_outboxmessage_change", args=[id]),
    "requeue": reverse("admin:django_outbox_outboxmessage_requeue") + "?" + cause,
    "order": "/orders/5/",
}
found = {}
for name, path in paths.items():
    response = client.get(path)
    found[name] = [response.status_code, response.content.decode()]
print(json.dumps(found))
"""

ADDED = {
    "django": ("", 'id="site-name"'),
    "unfold": ('INSTALLED_APPS.insert(0, "unfold")', "unfold/css/styles.css"),
    "jazzmin": ('INSTALLED_APPS.insert(0, "jazzmin")', "adminlte"),
    "silk": (
        """
INSTALLED_APPS += ["silk"]
MIDDLEWARE.insert(0, "silk.middleware.SilkyMiddleware")
SILKY_PYTHON_PROFILER = SILKY_ANALYZE_QUERIES = True
""",
        "",
    ),
    "toolbar": (
        """
DEBUG = True
INSTALLED_APPS += ["debug_toolbar"]
MIDDLEWARE.insert(0, "debug_toolbar.middleware.DebugToolbarMiddleware")
INTERNAL_IPS = ["127.0.0.1"]
""",
        'id="djDebug"',
    ),
}
URLS = """
from django.conf import settings
from django.urls import include
from django.apps import apps

if apps.is_installed("silk"):
    urlpatterns += [path("silk/", include("silk.urls"))]
if apps.is_installed("debug_toolbar"):
    urlpatterns += [path("__debug__/", include("debug_toolbar.urls"))]
"""


@pytest.fixture(params=ADDED)
def added(request: pytest.FixtureRequest, project: Project) -> str:
    """The name of what was added to the project, in which one of two messages has failed."""
    project.write("mysite/handlers.py", HANDLER)
    project.append("mysite/urls.py", URLS)
    entry = {"BACKEND": "django_outbox.handlers.HandlersPublisher", "RETRY": {"MAX_ATTEMPTS": 1}}
    project.configure(f'OUTBOX["PUBLISHERS"]["default"] = {entry}')
    project.configure(ADDED[request.param][0])
    project.migrate()
    project.place_orders(1)
    project.manage("run_outbox", "--drain")
    return str(request.param)


def test_the_pages_show_their_parts(added: str, project: Project):
    pages: dict[str, Any] = json.loads(project.execute(BROWSE).splitlines()[-1])
    parts = {
        "overview": ("outbox-verdict", "<svg", "default", "the shop is closed", "Requeue"),
        "list": ("order.created", "the shop is closed"),
        "message": ("order.created", "the shop is closed", "Requeue"),
        "requeue": ("order.created", 'name="reason"'),
        "order": ("number",),
    }
    for name, texts in parts.items():
        status, body = pages[name]
        assert status == 200, (name, body[:2000])
        for text in (*texts, ADDED[added][1] if name != "order" else ""):
            assert text in body, (name, text, body)
    assert project.count() == project.count(table="mysite_order") == 2
    if added == "silk":
        # It has recorded the requests, and nothing of the relay.
        assert project.count(table="silk_request") == len(pages)
        before = project.count(table="silk_sqlquery")
        project.manage("run_outbox", "--drain")
        assert project.count(table="silk_sqlquery") == before
