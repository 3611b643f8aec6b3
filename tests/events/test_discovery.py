"""Django finds the events of each app when it starts, without a query, and runs the guide's examples."""

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import find

ROOT = Path(__file__).resolve().parent.parent.parent

SETUP = """
import warnings
warnings.simplefilter("error")
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="only for tests",
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["shop", "django_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}},
)
from unittest import mock
with mock.patch("django.db.backends.base.base.BaseDatabaseWrapper.connect", side_effect=AssertionError("a query")):
    django.setup()

from django.core.management import call_command
call_command("check")
call_command("migrate", run_syncdb=True, verbosity=0)
from django_outbox import OutboxMessage
from django_outbox.events import decode_event

def messages():
    return [(m.type, m.key, m.payload, m.headers) for m in OutboxMessage.objects.order_by("pk")]
"""


def run(folder: Path, files: dict[str, str], code: str) -> str:
    """Run code in a project whose app `shop` has these files."""
    (folder / "shop").mkdir()
    for name, text in {"__init__.py": "", **files}.items():
        (folder / "shop" / name).write_text(text)
    ended = subprocess.run(
        [sys.executable, "-c", SETUP + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{folder}"},
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_guide_to_events_works(tmp_path: Path):
    first, _ = find("events", caption="shop/events.py")
    (services,) = find("events", caption="shop/services.py")
    code = """
import datetime
from decimal import Decimal
from types import SimpleNamespace
from shop.events import OrderCreated
from shop.services import place_order

at = datetime.datetime(2026, 5, 1, 8, 30, 0, 123456, tzinfo=datetime.timezone.utc)
place_order(SimpleNamespace(id=7, total=Decimal("9.50"), placed_at=at, save=lambda: None))
((type, key, payload, headers),) = messages()
assert (type, key, headers) == ("order.created", "order-7", {"event-version": 1})
assert payload == {"id": 7, "total": "9.50", "placed_at": "2026-05-01T08:30:00.123456Z"}
assert decode_event(type, payload, headers) == OrderCreated(7, Decimal("9.50"), at)
"""
    run(tmp_path, {"events.py": first, "services.py": services}, code)


def test_the_guide_to_versions_works(tmp_path: Path):
    _, newest = find("events", caption="shop/events.py")
    code = """
from decimal import Decimal
from shop.events import OrderCreated

old = b'{"id": 7, "total": "9.50", "lines": ["a", "b"]}'
assert decode_event("order.created", old, {}) == OrderCreated(7, Decimal("9.50"), "EUR", 2)
"""
    run(tmp_path, {"events.py": newest}, code)


def test_the_guide_to_events_of_models_works(tmp_path: Path):
    (models,) = find("domain-events", caption="shop/models.py")
    events = """
from dataclasses import dataclass
from decimal import Decimal
from django_outbox.events import event

@event("order.created", key="order-{id}")
@dataclass
class OrderCreated:
    id: int
    total: Decimal

@event("order.paid", key="order-{id}")
@dataclass
class OrderPaid:
    id: int

@event("order.cancelled", key="order-{id}")
@dataclass
class OrderCancelled:
    id: int
"""
    code = """
from decimal import Decimal
from shop.models import Order

order = Order.place(Decimal(9))
order.pay()
order.cancel()
assert [message[:2] for message in messages()] == [
    ("order.created", "order-1"), ("order.paid", "order-1"), ("order.cancelled", "order-1")
]
assert not Order.objects.exists()
"""
    run(tmp_path, {"events.py": events, "models.py": models}, code)
