"""Celery tasks that are sent if, and only if, the caller's transaction commits.

    app = OutboxCelery("shop")      # all calls of the app
    @shared_task(base=OutboxTask)   # or single tasks of a Celery app
    def send_receipt(order_id): ...

    with transaction.atomic():
        order.save()
        send_receipt.delay(order.id)

Celery apps import it before Django's models are loaded.
"""

from django_outbox.celery.app import OutboxCelery
from django_outbox.celery.task import OutboxTask

__all__ = ["OutboxCelery", "OutboxTask"]
