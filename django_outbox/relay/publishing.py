"""Publish the messages of a batch to a broker, in as few calls as their order allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django_outbox.messages import Message
from django_outbox.relay.batch import Batches
from django_outbox.relay.isolation import publish_isolated
from django_outbox.relay.settlement import Decided, decide, leave_late
from django_outbox.relay.tally import Tally
from django_outbox.relay.waves import publish_in_waves


@dataclass(kw_only=True)
class PublishedBatches(Batches):
    """Delivers batches of a publisher that sends them to a broker."""

    def run(self, limit: int) -> Tally:
        """Deliver a batch of at most `limit` messages.

        Raises:
            DatabaseError: the database was unavailable or refused.
        """
        return self.deliver(self.source.claim(limit), self._publish)

    def _publish(self, messages: Sequence[Message]) -> Decided:
        alias = self.publisher.alias
        if self.source.is_late:
            return leave_late(alias, self.source, messages)
        publish = partial(
            publish_isolated, self.publisher.publish, publisher_alias=alias, is_stopping=self._may_not_begin
        )
        if self.publisher.keeps_order:
            outcomes = publish(messages)
        else:
            outcomes = publish_in_waves(
                publish,
                messages,
                failed_blocks_key=self.settings.failed_blocks_key,
                is_stopping=self._may_not_begin,
            )
        return decide(alias, messages, outcomes, self.settings)

    def _may_not_begin(self) -> bool:
        """Return whether no further call of the publisher may begin: half of the claim timeout is over as well."""
        return self.is_stopping() or self.source.is_late
