"""The relay: claims due messages, publishes them and settles them."""

from django_outbox.relay.limits import Limits
from django_outbox.relay.relay import Relay
from django_outbox.relay.tally import Tally

__all__ = ["Limits", "Relay", "Tally"]
