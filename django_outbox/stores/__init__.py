"""Stores claim and settle messages, one module for each kind of database; `get_store` selects by vendor."""

from django_outbox.stores.base import Store, find_store, get_store
from django_outbox.stores.locks import Lease
from django_outbox.stores.rows import Claim, ClaimRequest, Failed, Held, NewRow, Purged, Retried, Settlement

__all__ = [
    "Claim",
    "ClaimRequest",
    "Failed",
    "Held",
    "Lease",
    "NewRow",
    "Purged",
    "Retried",
    "Settlement",
    "Store",
    "find_store",
    "get_store",
]
