"""The pages that machines read: health checks and metrics. They show no payload, key, address or name of a person."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_outbox.monitoring.figures import Level
from django_outbox.monitoring.readings import Reading, default_databases, holds_outbox, read_all

__all__ = ["health", "metrics"]

View = Callable[[HttpRequest], HttpResponse]

NO_CLIENT = 'prometheus_client is not installed: pip install "django-transactional-outbox[prometheus]"\n'


def outside_transactions(view: View) -> View:
    """Run a view outside the transactions of `ATOMIC_REQUESTS`."""

    @wraps(view)
    def outside(request: HttpRequest) -> HttpResponse:
        return view(request)

    for alias in connections:
        outside = transaction.non_atomic_requests(alias)(outside)
    return outside


def for_databases(view: Callable[[HttpRequest, Sequence[str]], HttpResponse]) -> View:
    """Give a view the aliases in `?database=`, by default the router's; 404 if one holds no outbox.

    It is served without a login, because a redirect to a login page would look like success to a probe, without a
    cache, and outside of the transactions of `ATOMIC_REQUESTS`.
    """

    @wraps(view)
    def read(request: HttpRequest) -> HttpResponse:
        aliases = list(dict.fromkeys(request.GET.getlist("database"))) or default_databases()
        if not all(map(holds_outbox, aliases)):
            return JsonResponse({"error": "There is no outbox in a database with that alias."}, status=404)
        return view(request, aliases)

    # It has another signature.
    del read.__wrapped__
    return login_not_required(never_cache(require_safe(outside_transactions(read))))


@for_databases
def health(request: HttpRequest, databases: Sequence[str]) -> HttpResponse:
    """Answer 200 with the verdicts, or 503 if one is critical."""
    readings = read_all(databases)
    level = max(reading.level for reading in readings)
    body = {"level": name_of(level), "databases": {reading.using: _describe(reading) for reading in readings}}
    return JsonResponse(body, status=503 if level == Level.CRITICAL else 200)


@for_databases
def metrics(request: HttpRequest, databases: Sequence[str]) -> HttpResponse:
    """Answer with the figures as text for Prometheus, or 501 if `prometheus_client` is not installed."""
    try:
        from django_outbox.monitoring.prometheus import expose  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        return HttpResponse(NO_CLIENT, status=501, content_type="text/plain; charset=utf-8")
    text, content_type = expose(databases, request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def name_of(level: Level) -> str:
    return level.name.lower()


def _describe(reading: Reading) -> dict[str, Any]:
    status = reading.status
    return {
        "level": name_of(reading.level),
        "verdicts": [
            {"level": name_of(each.level), "code": each.code, "publisher": each.publisher, "consumer": each.consumer}
            for each in reading.verdicts
        ],
        "publishers": {
            publisher.alias: {
                "due": publisher.due.number,
                "oldest_due_seconds": publisher.oldest_due,
                "blocked": publisher.blocked.number,
                "failed": publisher.failed.number,
                "relays": publisher.relays,
                "delivered_in_last_minute": publisher.processed_per_minute,
                "rate_limit": publisher.rate_limit,
            }
            for publisher in status.publishers
        },
        "consumers": {
            consumer.alias: {"state": consumer.state, "inboxes": consumer.inboxes, "received": consumer.received}
            for consumer in status.consumers
        },
    }
