"""The side of django-celery-outbox in the benchmark `celery`; it runs where that package is installed.

It reads a case and a number of tasks from each line of its input, and writes the seconds that the case took.
"""

import json
import logging
import sys
import time
from typing import Any

import django
from django.conf import settings

OPTIONS = json.loads(sys.argv[1])

PAYLOAD = {"id": 1240, "customer": "Ada", "lines": ["teapot", "cup"], "note": "x" * 100}

RELAYS: dict[str, dict[str, Any]] = {
    "rival_drain": {},
    "rival_drain_tuned": {"batch_size": 1000, "publish_concurrency": 8},
}


def main() -> None:
    settings.configure(
        SECRET_KEY="only for benchmarks",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["django_celery_outbox"],
        DATABASES={"default": OPTIONS["database"]},
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
    name = OPTIONS["queue"]
    app = OutboxCelery("benchmark", broker=OPTIONS["url"])
    app.conf.update(
        task_queues=[Queue(name, routing_key=name, queue_arguments={"x-queue-type": "quorum"})],
        task_default_queue=name,
        broker_transport_options={"confirm_publish": True},
        task_ignore_result=True,
    )
    settings.CELERY_OUTBOX_APP = app

    @app.task(name="benchmark.note")  # type: ignore[untyped-decorator]
    def note(order: dict[str, object]) -> None:
        pass

    def store(count: int, *, together: bool) -> float:
        CeleryOutbox.objects.all().delete()
        began = time.perf_counter()
        if together:
            with transaction.atomic():
                for _ in range(count):
                    note.delay(PAYLOAD)
        else:
            for _ in range(count):
                with transaction.atomic():
                    note.delay(PAYLOAD)
        return time.perf_counter() - began

    def drain(count: int, **options: Any) -> float:
        relay = Relay(app, RelayConfig.init(idle_time=0, **options))
        store(count, together=True)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        began = time.perf_counter()
        while CeleryOutbox.objects.exists():
            relay._processing()
        return time.perf_counter() - began

    for line in sys.stdin:
        case, count = json.loads(line)
        seconds = store(count, together=False) if case == "rival" else drain(count, **RELAYS[case])
        sys.stdout.write(f"{seconds}\n")
        sys.stdout.flush()


main()
