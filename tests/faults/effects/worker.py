"""The Celery workers of a run."""

import os
import uuid
from typing import Any

# All that a worker imports, so that the processes that are forked have it.
import celery.apps.worker
import celery.bin.celery
import celery.concurrency.solo  # noqa: F401
from celery.signals import worker_ready

from tests.faults.effects.canvas import app


def run_worker(ready: int) -> None:
    """Take tasks until this process is killed; close the file `ready` as soon as it takes them."""

    @worker_ready.connect(weak=False)
    def report(**_: Any) -> None:
        os.close(ready)

    # RabbitMQ may not have noticed yet that the last worker of that name is gone.
    name = f"{uuid.uuid4().hex[:8]}@%h"
    options = ["-n", name, "-P", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["--quiet", "worker", *options])
