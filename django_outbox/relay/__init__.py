"""The relay: it claims messages, publishes and settles them.

A message meets these modules:

- `relay`: publishers and threads; `worker`: the loop of a thread, which decides when a batch is delivered
- `delivery`: one batch, within the limits of `rate_limits` and of the budget in `state`
- `sending`: messages go to a broker in waves; if the publisher raises, `isolation` finds the culprits
- `handling`: the same for a publisher that calls handlers, `transactional`, in `savepoints`, or `leased`
- `batch`: claim, copy `dead_letters`, settle; the `recorder` is called after each phase
- `decisions`: the new state of each message
- `sources`: where messages are claimed, and where their new states are written

`breakers` and `pauses` decide whether there is a round at all. `state` has what the workers share.
"""

from django_outbox.relay.limits import Limits
from django_outbox.relay.relay import Relay
from django_outbox.relay.state import Tally

__all__ = ["Limits", "Relay", "Tally"]
