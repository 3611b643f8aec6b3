"""The side of django-celery-outbox in the benchmark `celery`; it runs where that package is installed.

It reads its options from its input, and writes the seconds that the case took.
"""

import json
import logging
import sys
import time
from typing import Any

import django
from django.conf import settings

RELAYS: dict[str, dict[str, Any]] = {"relay": {}, "tuned relay": {"batch_size": 1000, "publish_concurrency": 8}}


def main(case: str, count: int, *, database: dict[str, Any], url: str, queue: str, payload: dict[str, Any]) -> float:
    settings.configure(
        SECRET_KEY="only for benchmarks",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["django_celery_outbox"],
        DATABASES={"default": database},
    )
    django.setup()
    import structlog  # noqa: PLC0415 - only where that package is installed
    from django.core.management import call_command  # noqa: PLC0415
    from django.db import connection, transaction  # noqa: PLC0415
    from django_celery_outbox import OutboxCelery  # noqa: PLC0415
    from django_celery_outbox.models import CeleryOutbox  # noqa: PLC0415
    from django_celery_outbox.relay import Relay, RelayConfig  # noqa: PLC0415
    from kombu import Queue  # noqa: PLC0415

    # Its log would be measured too.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    call_command("migrate", verbosity=0)
    app = OutboxCelery("benchmark", broker=url)
    app.conf.update(
        task_queues=[Queue(queue, routing_key=queue, queue_arguments={"x-queue-type": "quorum"})],
        task_default_queue=queue,
        broker_transport_options={"confirm_publish": True},
        task_ignore_result=True,
    )
    settings.CELERY_OUTBOX_APP = app

    @app.task(name="benchmark.note")  # type: ignore[untyped-decorator]
    def note(order: dict[str, object]) -> None:
        pass

    CeleryOutbox.objects.all().delete()
    began = time.perf_counter()
    for _ in range(count):
        with transaction.atomic():
            note.delay(payload)
    if case in RELAYS:
        relay = Relay(app, RelayConfig.init(idle_time=0, **RELAYS[case]))
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        began = time.perf_counter()
        while CeleryOutbox.objects.exists():
            relay._processing()
    return time.perf_counter() - began


sys.stdout.write(str(main(**json.load(sys.stdin))))
