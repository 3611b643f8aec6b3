"""The figures as metrics of OpenTelemetry. Needs `opentelemetry-api`."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from django_outbox.monitoring.gauges import GAUGES, Gauge
from django_outbox.monitoring.readings import Reading, read_all

__all__ = ["observe_outbox"]

READING_SECONDS = 2.0
"""Age up to which a reading is shared, so that an export reads each database once, unavailable ones too."""


def observe_outbox(databases: Sequence[str] | None = None, *, meter_provider: MeterProvider | None = None) -> None:
    """Create observable gauges that read the figures of the outbox whenever metrics are exported.

    Call it once in one process. It queries no database.

    Args:
        databases: the database aliases; by default the one that the router chooses for writing.
        meter_provider: the provider of the meter; by default the global one.
    """
    meter = get_meter("django_outbox", meter_provider=meter_provider)
    readings = _Readings(partial(read_all, databases))
    for gauge in GAUGES:
        meter.create_observable_gauge(
            f"django_outbox.{gauge.name}", [partial(_observe, gauge, readings)], gauge.unit, gauge.help
        )


class _Readings:
    """Readings that the callbacks of one export share."""

    def __init__(self, read: Callable[[], list[Reading]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._readings: list[Reading] = []
        self._read_at = float("-inf")

    def get(self) -> list[Reading]:
        with self._lock:
            if self._clock() - self._read_at > READING_SECONDS:
                self._readings = self._read()
                self._read_at = self._clock()
            return self._readings


def _observe(gauge: Gauge, readings: _Readings, _: CallbackOptions) -> Iterable[Observation]:
    for labels, value in gauge.samples(readings.get()):
        yield Observation(value, dict(zip(gauge.labels, labels, strict=True)))
