"""The relays: real `run_outbox` processes, each in its own place."""

import json
import os
import sys
from pathlib import Path

from tests.faults.brokers.base import Broker
from tests.faults.places import Place, Places
from tests.faults.plan import RELAYS, WORKERS, Plan
from tests.faults.servers import DatabaseServer
from tests.support.children import ROOT, Nursery
from tests.support.proxies import Proxies


def make_relays(
    plan: Plan, nursery: Nursery, database: DatabaseServer, broker: Broker, proxies: Proxies, *, late: Path
) -> Places:
    """Return the places of a plan's relays, which note late calls of their publishers in the journal `late`."""
    command = [sys.executable, "-m", "django", "run_outbox", "--workers", str(WORKERS)]
    places = []
    for number in range(RELAYS):
        database_proxy = proxies.open(database.port)
        broker_proxy = broker.open_way(proxies)
        url = database.url("relay", database_proxy.port)
        publishers = {"default": broker.publisher(broker_proxy.port)}
        backend = publishers["default"]["BACKEND"].rpartition(".")[2]
        publishers["default"]["BACKEND"] = f"tests.faults.publishing.Watched{backend}"
        publishers["dead"] = broker.publisher(broker_proxy.port, dead=True)
        environment = {**django_environment(plan, url), "FAULTS_PUBLISHERS": json.dumps(publishers)}
        environment["FAULTS_LATE"] = str(late)
        environment["FAULTS_STOP"] = str(nursery.directory / f"relay-{number}.stop")
        places.append(Place(f"relay-{number}", command, environment, database_proxy, broker_proxy))
    return Places(nursery, places, plan.seed)


def django_environment(plan: Plan, database_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "FAULTS_DATABASE_URL": database_url,
        "FAULTS_OUTBOX": json.dumps(plan.settings),
        "FAULTS_SOURCE": plan.source,
    }
