"""What each view says at which moment after a real relay was killed, cut from its broker or limited.

One run for all views, because it takes real time: relays report every 10 seconds.
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from html import unescape
from io import StringIO
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pytest
import redis
from django.conf import settings as project
from django.core.management import call_command
from django.db import connections
from django.test import Client, override_settings

from django_outbox.management.live import RelayFigures
from django_outbox.models import Heartbeat, OutboxMessage
from django_outbox.monitoring.status import CACHE_SECONDS
from django_outbox.relay import Relay
from tests.conftest import ALIASES
from tests.support.admin.overview_pages import address
from tests.support.admin.tools import text
from tests.support.messages import ago, put
from tests.support.proxies import Proxies, Proxy
from tests.support.relay_threads import relays_in_threads
from tests.support.spawning import process
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(databases=ALIASES, transaction=True)]

MOMENTS = (5, 15, 30, 45, 60, 90)
"""Seconds since the relays were killed and cut; for the limited one, since it has more messages than it may deliver."""

LIMIT = 5
REDIS_PORT = int(project.REDIS_URL.rpartition("/")[0].rpartition(":")[2])


class Fate(NamedTuple):
    """The database and the publisher of relays, and their states, before and after two reports were missed."""

    using: str
    alias: str
    states: Sequence[str] = ("running",)


FATES = {
    "killed": Fate("postgresql", "default", ("running", "not seen")),
    "cut": Fate("mariadb", "cut"),
    "limited": Fate("default", "limited"),
}

OK, WARNING, CRITICAL = "OK", "WARNING", "CRITICAL"
FOREVER = float("inf")
DELIVERING, NOT_DELIVERING = (OK, "delivering"), (WARNING, "not_delivering")
UNAVAILABLE, BEHIND = (WARNING, "unavailable"), (WARNING, "behind")
TABLE = {
    # A relay that was killed may have reported just before, so it is silent for 5 to 15 seconds after 5; and the other
    # one may have reported some seconds later.
    "killed": (
        (DELIVERING, 0, 29),
        ((WARNING, "not_reporting"), 6, 29),
        (NOT_DELIVERING, 6, 85),
        ((CRITICAL, "not_delivering"), 50, FOREVER),
    ),
    # The outage is in the next report.
    "cut": ((DELIVERING, 0, 14), (UNAVAILABLE, 0, 85), ((CRITICAL, "unavailable"), 50, FOREVER)),
    # Messages are late after a minute.
    "limited": ((DELIVERING, 0, 85), (BEHIND, 50, FOREVER)),
}
"""The level and the code that every view may show first, with the first and the last second in which it may."""

PERIOD = r"(\d+ s|\d min( \d+ s)?)"
SENTENCES = {
    "delivering": r"Delivering: [\d,]+ messages? in the last minute, [\d,]+ due\.",
    "not_reporting": rf"1 relay of 2 \(\S+\) has not reported for {PERIOD}: [\d,]+ due for 'default'\.",
    "not_delivering": rf"Not delivering for {PERIOD}: [\d,]+ due for 'default', no relay is running \(2 last seen "
    rf"{PERIOD} ago\)\.",
    "unavailable": rf"Publisher 'cut' has been unavailable for {PERIOD}(?: \(.+\))?: [\d,]+ due\.",
    "behind": rf"Publisher 'limited' is {PERIOD} behind: it delivers its limit of 5 messages a second, [\d,]+ due "
    rf"\({PERIOD} left at this rate\)\.",
}
"""The sentence of each code; the overview shows the error of an outage below it."""


class View(NamedTuple):
    """What one view says: its first verdict, and the deliveries of the last minute if it has them."""

    name: str
    level: str
    code: str
    delivered: int | None = None


def run_relay(pipe: Connection, using: str, alias: str, outbox: dict[str, Any]) -> None:
    with override_settings(OUTBOX=outbox):
        Relay(using=using, publishers=[alias]).run()


def outbox_of(port: int) -> dict[str, Any]:
    """Return the settings with Redis at a port of this machine."""
    memory = {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}
    backend = "django_outbox.brokers.redis.RedisStreamsPublisher"
    url = f"redis://127.0.0.1:{port}/{project.REDIS_URL.rpartition('/')[2]}"
    return {
        "PUBLISHERS": {
            "default": memory,
            "cut": {"BACKEND": backend, "OPTIONS": {"url": url}},
            "limited": {**memory, "RATE_LIMIT": LIMIT},
        }
    }


@pytest.fixture
def type() -> Iterator[str]:
    """A type of messages, whose stream is deleted afterwards."""
    name = f"moments-{uuid.uuid4()}"
    with redis.Redis.from_url(project.REDIS_URL) as client:
        yield name
        client.delete(name)


@pytest.fixture
def proxy(settings: Any) -> Iterator[Proxy]:
    with Proxies() as proxies:
        opened = proxies.open(REDIS_PORT)
        settings.OUTBOX = outbox_of(opened.port)
        yield opened


@pytest.fixture
def relays(type: str, proxy: Proxy) -> Iterator[tuple[dict[str, Relay], Callable[[], None]]]:
    """Relays at work, by their fate, and the function that brings it about. Messages are enqueued all the time."""
    with ExitStack() as stack:
        target = f"{__name__}.{run_relay.__name__}"
        using, alias, _ = FATES["killed"]
        children = [stack.enter_context(process(target, using, alias, outbox_of(proxy.port)))[0] for _ in range(2)]
        stack.enter_context(enqueueing(type))
        start = stack.enter_context(relays_in_threads())
        found = {fate: start(using=FATES[fate].using, publishers=[FATES[fate].alias]) for fate in ("cut", "limited")}

        def bring_about() -> None:
            for child in children:
                child.kill()
            proxy.go_down()
            put(1000, FATES["limited"].using, publisher="limited")

        # An operator looks at the killed ones from another terminal.
        with Relay(using=FATES["killed"].using, publishers=["default"]) as found["killed"]:
            yield found, bring_about


@contextmanager
def enqueueing(type: str) -> Iterator[None]:
    left = threading.Event()

    def enqueue() -> None:
        # Fewer than the limited relay may deliver.
        while not left.wait(0.3):
            for using, alias, _ in FATES.values():
                put(1, using, type=type, publisher=alias)
        connections.close_all()

    thread = threading.Thread(target=enqueue)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()


def views(client: Client, fate: str) -> Iterator[View]:
    """Ask each view for its first verdict about a database, and check what it shows of the publisher."""
    using, alias, states = FATES[fate]
    limit = r" \(limit 5/s\)" if fate == "limited" else ""
    output = status(using)
    level, sentence = re.match(r"(\w+): (.+)\n", output).groups()  # type: ignore[union-attr]
    row = re.search(rf"^  {alias} .*? ([\d,]+){limit}  +(\S+)  +(\d)$", output, re.MULTILINE)
    assert row, output
    assert re.search(rf"({'|'.join(states)})  ", output), output
    yield View("outbox_status", level, code_of(sentence), int(row[1].replace(",", "")))

    figures = json.loads(status(using, "--json"))
    [publisher] = [each for each in figures["publishers"] if each["alias"] == alias]
    assert publisher["rate_limit"] == (LIMIT if fate == "limited" else None)
    yield View("JSON", figures["level"], figures["verdicts"][0]["code"], publisher["processed_per_minute"])

    page = unescape(text(client.get(address(using=using, fragment="1"))))
    first = re.search(r'outbox-verdict outbox-(\w+)".*?outbox-sentence">(.*?)</span>', page, re.DOTALL)
    assert first, page
    # All publishers of the settings are on each page.
    assert page.count("limit 5/s") == 1
    assert re.search(rf"outbox-pill[^>]*>({'|'.join(states)})<", page)
    yield View("overview", first[1].upper(), code_of(first[2]))

    answer = client.get("/outbox/health/", {"database": using})
    health = answer.json()["databases"][using]
    assert answer.status_code == (503 if health["level"] == "critical" else 200)
    mine = health["publishers"][alias]
    assert mine["rate_limit"] == publisher["rate_limit"]
    yield View("health", health["level"].upper(), health["verdicts"][0]["code"], mine["delivered_in_last_minute"])

    samples = text(client.get("/outbox/metrics/", {"database": using}))
    number = re.search(rf'^django_outbox_level{{database="{using}"}} (\d)', samples, re.MULTILINE)
    worst = re.findall(rf'^django_outbox_verdict{{code="(\w+)".*}} {number and number[1]}\.0$', samples, re.MULTILINE)
    counted = re.search(rf'last_minute_processed_messages{{.*publisher="{alias}"}} (\d+)', samples)
    assert number
    assert counted
    assert f'django_outbox_rate_limit{{database="{using}",publisher="limited"}} 5.0' in samples
    yield View("metrics", (OK, WARNING, CRITICAL)[int(number[1])], worst[0], int(counted[1]))


def code_of(sentence: str) -> str:
    """Return the code that a sentence belongs to. A relay may report between two views, so each is read by itself."""
    codes = [code for code, pattern in SENTENCES.items() if re.fullmatch(pattern, sentence)]
    assert len(codes) == 1, sentence
    return codes[0]


def reported(fate: str) -> int:
    return Heartbeat.objects.using(FATES[fate].using).filter(processed__gt=0).count()


def status(using: str, *arguments: str) -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("outbox_status", "--database", using, "--no-color", *arguments, stdout=out)
    return out.getvalue()


def test_each_view_at_each_moment(relays: tuple[dict[str, Relay], Callable[[], None]], admin_client: Client):
    figures = {fate: RelayFigures(relay) for fate, relay in relays[0].items()}
    # A relay reports when it starts, and 10 seconds later what it has delivered.
    eventually(lambda: reported("killed") == 2 and reported("cut") == reported("limited") == 1)
    relays[1]()
    began, wrong, seen = time.monotonic(), [], []
    for moment in MOMENTS:
        time.sleep(max(began + moment - time.monotonic(), 0))
        for fate, verdicts in TABLE.items():
            # The pages share figures for two seconds; a busy machine answers late.
            first = time.monotonic() - began - CACHE_SECONDS
            asked = [*views(admin_client, fate)]
            last = time.monotonic() - began
            allowed = {verdict for verdict, begin, end in verdicts if begin <= last and first <= end}
            delivered = OutboxMessage.objects.using(FATES[fate].using).filter(processed_at__gt=ago(seconds=90)).count()
            for view in asked:
                seen.append(f"{moment:>3} s  {fate:8} {view.name:14} {view.level} {view.code} {view.delivered}")
                if (view.level, view.code) not in allowed or (view.delivered or 0) > delivered:
                    wrong.append(seen[-1])
            live = figures[fate].read()
            due, *rest = live.texts
            assert re.fullmatch(r"due [\d,]+", due)
            assert ("limited (limit 5/s)" in live.served) is (fate == "limited")
            outages = [f"{each.name} {each.state}" for each in live.outages]
            assert moment < 15 or outages == ["cut: Redis unavailable"] * (fate == "cut")
            assert moment < 30 or (due != "due 0" and rest[0].startswith("oldest ")), live.texts
    assert not wrong, "\n".join(wrong)
    # Nothing has been delivered for more than a minute.
    assert all(each.endswith(("None", " 0")) for each in seen if each.startswith(" 90") and "limited" not in each)
