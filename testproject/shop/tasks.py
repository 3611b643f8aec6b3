"""Celery tasks of the shop, which are sent through the outbox."""

from celery import shared_task
from django.db.models.functions import Now

from django_outbox.celery import OutboxTask
from shop.models import Receipt


@shared_task(base=OutboxTask, ignore_result=True)
def send_confirmation(order_id: int) -> None:
    """Confirm an order to its customer. A task may run twice; the second call does nothing."""
    # A real shop sends an e-mail here.
    Receipt.objects.filter(order_id=order_id, confirmed=None).update(confirmed=Now())
