"""The settings of billing in a run: those of the example project, with a consumer that counts."""

from billing.settings import *  # noqa: F403 - only a few differ
from billing.settings import BILLING_QUEUE, BROKER_URL, DATABASES, OUTBOX, env

DATABASES["default"].setdefault("OPTIONS", {})["connect_timeout"] = 5
OUTBOX["CONSUMERS"] = {
    "orders": {
        "BACKEND": f"tests.faults.orders.consumers.{env.str('FAULTS_CONSUMER')}",
        "OPTIONS": {"url": BROKER_URL, "queue": BILLING_QUEUE, "journal": env.str("FAULTS_RECEIVED")},
    }
}
