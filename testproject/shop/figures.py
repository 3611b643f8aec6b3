"""The figures of one run of the demo, and the checks that they must pass."""

from dataclasses import dataclass

from shop.buyers import Placed
from shop.terminal import plural


@dataclass
class Figures:
    """Counts of the orders and messages of one run.

    Args:
        placed: responses of the shop's view.
        orders: orders in the database.
        enqueued: messages in the outbox.
        in_flight: messages that had been sent, and not settled, when the relay was killed.
        pending_after_kill: messages that were pending right after the kill.
        failed: messages that failed at first.
        requeued: messages that were requeued.
        delivered: messages that the outbox has marked as processed in the end.
        left_failed: messages that are still failed in the end.
        arrivals: arrivals at the destination, duplicates included.
        arrived: different messages among them.
        repeated_in_flight: messages that arrived more than once and were in flight at the kill.
        for_rolled_back: arrivals about an order that was rolled back.
        handled_before_kill: messages that the handler had processed when its relay was killed.
        receipts_before_kill: receipts in the database right after that.
        handled: messages that the handler has processed in the end.
        receipts: receipts in the end.
        invoices: invoices that billing has written.
        broker_drops_duplicates: whether the broker keeps one of several messages with the same ID.
        each_order_has_one_invoice: whether each order in the database has exactly one of them.
    """

    placed: Placed
    orders: int
    enqueued: int
    in_flight: int
    pending_after_kill: int
    failed: int
    requeued: int
    delivered: int
    left_failed: int
    arrivals: int
    arrived: int
    repeated_in_flight: int
    for_rolled_back: int
    handled_before_kill: int
    receipts_before_kill: int
    handled: int
    receipts: int
    invoices: int
    broker_drops_duplicates: bool
    each_order_has_one_invoice: bool

    @property
    def duplicates(self) -> int:
        """Arrivals of a message that had arrived before."""
        return self.arrivals - self.arrived

    def rows(self) -> list[tuple[str, int]]:
        """Return the summary, line by line."""
        return [
            ("orders sent", self.placed.count),
            ("  saved", self.placed.saved),
            ("  rolled back", self.placed.rolled_back),
            ("messages enqueued", self.enqueued),
            ("  in flight at the kill", self.in_flight),
            ("  failed at first", self.failed),
            ("  requeued", self.requeued),
            ("  delivered", self.delivered),
            ("  left failed", self.left_failed),
            ("messages arrived", self.arrived),
            ("  duplicates", self.duplicates),
            ("receipts", self.receipts),
            ("invoices", self.invoices),
        ]

    def checks(self) -> list[tuple[str, bool]]:
        """Return the statements that must be true, and whether they are."""
        saved = self.placed.saved
        return [
            ("Every order that was accepted is in the database, and no other.", self.orders == saved),
            ("Each order, the report and the refund has exactly one message.", self.enqueued == saved + 2),
            ("No message announces an order that was rolled back.", self.for_rolled_back == 0),
            (
                f"The relay was killed in mid-batch: {plural(self.in_flight, 'message')} sent, none of them settled.",
                0 < self.in_flight <= self.pending_after_kill,
            ),
            ("Nothing was lost: every message arrived, except the one left failed.", self.arrived == self.enqueued - 1),
            (
                "The batch in flight was sent twice, and the broker dropped the second one.",
                self.duplicates == 0,
            )
            if self.broker_drops_duplicates
            else (
                "Only the batch in flight arrived twice, with the same message ids.",
                self.duplicates == self.repeated_in_flight == self.in_flight,
            ),
            (
                "The report failed, was requeued and then delivered.",
                self.failed - self.left_failed == self.requeued == 1,
            ),
            (
                "Each order has exactly one receipt, although a relay was killed while it wrote receipts.",
                self.receipts == self.handled == saved and 0 < self.receipts_before_kill == self.handled_before_kill,
            ),
            (
                f"Each order has exactly one invoice, although {plural(self.duplicates, 'message')} arrived twice.",
                self.each_order_has_one_invoice and self.invoices == saved,
            ),
            ("The outbox agrees: all delivered, except the one left failed.", self.delivered == self.enqueued - 1),
        ]
