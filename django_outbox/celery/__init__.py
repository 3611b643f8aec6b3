"""Celery tasks that are sent if, and only if, the caller's transaction commits.

@shared_task(base=OutboxTask)
def send_receipt(order_id): ...

with transaction.atomic():
order.save()
send_receipt.delay(order.id)
"""

from django_outbox.celery.task import OutboxTask

__all__ = ["OutboxTask"]
