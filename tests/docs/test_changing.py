"""Guides about other packages, which are installed: other outboxes, DRF and ninja. And the guide from `on_commit`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, find

# They stay together in one process, which installs the packages once.
pytestmark = pytest.mark.slow

PACKAGES = (
    *("django-outbox-pattern==3.2.*", "django-celery-outbox==0.4.*", "django-domain-events==0.14.*"),
    *("djangorestframework>=3.16", "django-ninja>=1.4"),
    # What they need, and this environment lacks.
    *("request-id-django-log==0.2.*", "stomp.py==8.*", "structlog", "sentry-sdk>=2", "datadog"),
)

SETTINGS = """
import sys
sys.path[:0] = {first!r}
sys.path += {last!r}
import django
from django.conf import settings

settings.configure(
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "project.sqlite3"}}}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_outbox", {app!r}],
    OUTBOX={{
        "PUBLISHERS": {{
            "default": {{"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}},
            "handlers": {{"BACKEND": "django_outbox.handlers.HandlersPublisher"}},
            "celery": {{
                "BACKEND": "django_outbox.brokers.celery.CeleryPublisher",
                "OPTIONS": {{"app": "shop.celery:app"}},
            }},
        }},
    }},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from django_outbox import OutboxMessage

call_command("migrate", verbosity=0, run_syncdb=True)
"""

CELERY = """
from django_outbox.celery import OutboxCelery

app = OutboxCelery("shop", broker="memory://")
"""
MODEL = """
from django.db import models

class Order(models.Model):
    number = models.CharField(max_length=9)
    total = models.IntegerField()
"""
SERVICES = """
from django.db import transaction
from django_outbox import enqueue
from shop.models import Order

def publish(type, payload): ...
"""
TESTS = """
from unittest import mock
from django.test import TestCase
from django_outbox.testing import OutboxTestMixin
from shop.services import place_order
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with these packages. One of them is a plugin of pytest, so this environment does without them."""
    folder = tmp_path_factory.mktemp("packages")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"]
    install = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(folder)]
    if subprocess.run([*install, *PACKAGES], check=False, timeout=300).returncode:
        pytest.skip("pip cannot install the packages: is PyPI reachable?")
    return folder


def move(folder: Path, packages: Path, app: str, enqueueing: str, checking: str) -> None:
    """Store messages with another outbox, move them as its guide does, and check what is in this one."""
    (shown,) = [code for code in find("from-other-outboxes", caption="shop/moving.py") if f"from {app}" in code]
    run(folder, f"{enqueueing}\nfrom shop.moving import move_pending\n{checking}", app, packages, moving=shown)


def run(folder: Path, script: str, app: str, *packages: Path, **modules: str) -> None:
    """Run a script in a project with this app, and a package `shop` with these modules."""
    (folder / "shop").mkdir()
    for name, text in {"__init__": "", "celery": CELERY, **modules}.items():
        (folder / "shop" / f"{name}.py").write_text(text)
    settings = SETTINGS.format(first=[str(folder), str(ROOT)], last=[str(path) for path in packages], app=app)
    path = folder / "script.py"
    path.write_text(f"{settings}\n{script}")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", path], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_what_is_pending_in_django_outbox_pattern_is_moved_in_its_order(tmp_path: Path, packages: Path):
    move(
        tmp_path,
        packages,
        "django_outbox_pattern",
        """
from django_outbox_pattern.choices import StatusChoice
from django_outbox_pattern.models import Published

for number in range(5):
    Published.objects.create(destination="/topic/order.created", body={"number": number}, version="v1")
sent, *waiting = Published.objects.order_by("added")
Published.objects.filter(pk=sent.pk).update(status=StatusChoice.SUCCEEDED)
""",
        """
assert [move_pending(3), move_pending(3), move_pending(3)] == [3, 1, 0]
moved = list(OutboxMessage.objects.order_by("id"))
assert [message.type for message in moved] == ["order.created.v1"] * 4
assert [message.payload for message in moved] == [row.body for row in waiting]
assert [message.message_id for message in moved] == [row.pk for row in waiting]
assert moved[0].headers["dop-msg-id"] == str(waiting[0].pk)
assert [row.pk for row in Published.objects.all()] == [sent.pk]
""",
    )


def test_what_is_pending_in_django_celery_outbox_is_moved_with_its_options(tmp_path: Path, packages: Path):
    move(
        tmp_path,
        packages,
        "django_celery_outbox",
        """
import json
from django_celery_outbox import OutboxCelery
from django_celery_outbox.models import CeleryOutbox

old = OutboxCelery("shop", broker="memory://")
with transaction.atomic():
    first = old.send_task("shop.tasks.send_receipt", [7], {"copy": True}, queue="mail", countdown=3600)
    second = old.send_task("shop.tasks.send_receipt", [8])
""",
        """
assert [move_pending(), move_pending()] == [2, 0]
assert not CeleryOutbox.objects.exists()
moved = list(OutboxMessage.objects.order_by("id"))
assert [message.publisher for message in moved] == ["celery"] * 2
assert [message.type for message in moved] == ["shop.tasks.send_receipt"] * 2
assert str(moved[0].message_id) == first.id and str(moved[1].message_id) == second.id
assert moved[0].topic == "mail"
assert moved[0].available_at > moved[1].available_at
assert json.loads(moved[0].payload["body"])[:2] == [[7], {"copy": True}]
""",
    )


def test_what_is_pending_in_django_domain_events_is_moved_unless_a_receiver_has_begun(tmp_path: Path, packages: Path):
    move(
        tmp_path,
        packages,
        "django_domain_events",
        """
from dataclasses import dataclass
from decimal import Decimal
from django_domain_events import event, fire, receiver
from django_domain_events.models import DeliveryRecord
from django_outbox.events import decode_event
from django_outbox.events import event as new_event

@event(name="shop.OrderPlaced")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: int
    total: Decimal

@receiver(OrderPlaced, key="shop.reserve_stock")
def reserve_stock(event): pass

@receiver(OrderPlaced, key="shop.write_receipt")
def write_receipt(event): pass

with transaction.atomic():
    for number in range(4):
        fire(OrderPlaced(number, Decimal("9.50")))
DeliveryRecord.objects.filter(pk=1).update(status="succeeded")
DeliveryRecord.objects.filter(event=2).update(status="dead")
""",
        """
@new_event("shop.OrderPlaced", version=1)
@dataclass(frozen=True)
class NewOrderPlaced:
    order_id: int
    total: Decimal

assert [move_pending(), move_pending()] == [2, 0]
moved = list(OutboxMessage.objects.order_by("id"))
assert [message.publisher for message in moved] == ["handlers"] * 2
events = [decode_event(message.type, message.payload, message.headers) for message in moved]
assert events == [NewOrderPlaced(number, Decimal("9.50")) for number in (2, 3)]
owed = DeliveryRecord.objects.filter(status="pending")
assert [(row.event_id, row.receiver_key) for row in owed] == [(1, "shop.write_receipt")]
""",
    )


@pytest.mark.parametrize("outbox", ["", " (with the outbox)"], ids=["before", "after"])
def test_the_tests_before_and_after_on_commit_pass(tmp_path: Path, outbox: str):
    (services,) = find("from-on-commit", caption=f"shop/services.py{outbox}")
    (tests,) = find("from-on-commit", caption=f"shop/tests.py{outbox}")
    script = 'call_command("test", "shop", verbosity=0)'
    run(tmp_path, script, "shop", models=MODEL, services=SERVICES + services, tests=TESTS + tests)


def test_the_views_of_the_guide_to_drf_and_ninja_create_an_order_with_its_message(tmp_path: Path, packages: Path):
    modules = {name: "".join(find("frameworks", caption=f"shop/{name}.py")) for name in ("models", "views", "api")}
    script = """
from decimal import Decimal
from unittest import mock
from django.test import Client
from django.urls import include, path
from rest_framework.routers import SimpleRouter
from shop import views
from shop.api import api
from shop.models import Order

router = SimpleRouter()
router.register("orders", views.OrderViewSet)
urlpatterns = [path("drf/", include(router.urls)), path("ninja/", api.urls)]
settings.ROOT_URLCONF = __name__
settings.ALLOWED_HOSTS = ["testserver"]
client = Client(raise_request_exception=False)
order = {"number": "A-1", "total": "9.50"}
paths = {"/drf/orders/": 201, "/ninja/orders": 200, "/ninja/async-orders": 200}
for path, status in paths.items():
    response = client.post(path, order, content_type="application/json")
    assert response.status_code == status, response.content
    message, saved = OutboxMessage.objects.latest("id"), Order.objects.latest("id")
    assert message.payload == {"id": saved.pk, **order}, message.payload
    assert (message.key, saved.total) == (f"order-{saved.pk}", Decimal("9.50"))
for module in ("views", "api"):
    with mock.patch(f"shop.{module}.enqueue", side_effect=ValueError):
        for path in paths:
            if path.startswith("/drf") is (module == "views"):
                assert client.post(path, order, content_type="application/json").status_code == 500
assert Order.objects.count() == OutboxMessage.objects.count() == 3
"""
    run(tmp_path, script, "shop", packages, **modules)
