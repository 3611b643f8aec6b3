"""Celery's worker and beat instead of `run_outbox`: real processes on a real database and RabbitMQ."""

import os
from pathlib import Path

import pytest
from celery import Celery
from django.conf import settings

from tests.support.shop import PATIENCE, Process, Shop
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.shop_fixtures"]
pytestmark = pytest.mark.slow

ORDERS = int(os.environ.get("OUTBOX_E2E_ORDERS", "100"))
"""Number of orders that the test of beat places before beat starts, and again after that."""


def start_worker(shop: Shop, concurrency: int) -> Process:
    worker = shop.start_celery("worker", "--loglevel=INFO", f"--concurrency={concurrency}", f"--hostname={shop.queue}")
    worker.until_it_says(" ready.")
    return worker


def send(shop: Shop, task: str, times: int) -> None:
    """Ask for a task as another process would, which knows no more than its name."""
    with Celery(broker=settings.AMQP_URL, set_as_current=False) as app:
        app.conf.task_default_queue = shop.celery_queue
        for _ in range(times):
            app.send_task(f"django_outbox.tasks.{task}")


def test_beat_and_overlapping_drains_deliver_exactly_the_committed_orders_once(shop: Shop, tmp_path: Path):
    consumer = shop.start_consumer()
    saved = shop.place_orders(ORDERS)
    send(shop, "drain_outbox", times=8)
    worker = start_worker(shop, concurrency=4)
    beat = shop.start_celery("beat", "--schedule", str(tmp_path / "schedule"), "--pidfile=")
    saved += shop.place_orders(ORDERS)
    shop.wait_for_arrivals(saved, consumer)
    # The handler has sent a task for each order.
    eventually(lambda: shop.database.count("confirmed IS NOT NULL", "shop_receipt") == saved, seconds=PATIENCE)
    # Celery's beat stores its schedule in the handler of SIGTERM, wherever that interrupts it, and has hung there once.
    beat.kill()
    worker.stop()
    assert shop.assert_everything_arrived() == 0
    assert "django_outbox.tasks.drain_outbox" in worker.output
