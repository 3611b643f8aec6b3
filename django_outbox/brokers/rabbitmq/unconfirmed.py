"""Delivery tags of messages that the broker has not confirmed yet."""

from collections.abc import Iterable


class Unconfirmed:
    """The messages sent over a channel that are not confirmed yet, by delivery tag.

    Confirms arrive in any order, for single tags and for all tags up to one, so tags are looked up and never counted.
    """

    def __init__(self) -> None:
        self.last_tag = 0
        self._lowest_tag = 1
        self._indexes: dict[int, int] = {}

    def add(self, indexes: Iterable[int]) -> None:
        """Add messages that have just been sent, by their index in the batch."""
        for index in indexes:
            self.last_tag += 1
            self._indexes[self.last_tag] = index

    def confirm(self, tag: int, *, multiple: bool) -> list[int]:
        """Remove the message with this tag, or with `multiple` all messages up to it. Return their indexes."""
        tags = range(tag, tag + 1)
        if multiple:
            tags = range(self._lowest_tag, tag + 1)
            self._lowest_tag = max(self._lowest_tag, tag + 1)
        return [self._indexes.pop(each) for each in tags if each in self._indexes]
