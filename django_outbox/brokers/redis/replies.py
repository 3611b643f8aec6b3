"""Read the replies to a pipeline of commands, without an object for each reply."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Replies:
    """Replies that are received in pieces, each of which is a line or, like the ID of an entry, a string of one line.

    Attributes:
        count: the number of replies so far.
        errors: the text of each error by its position among the replies.
        last: the last line.
    """

    count: int = 0
    errors: dict[int, str] = field(default_factory=dict)
    last: bytes = b""
    _rest: bytes = b""
    _in_string: bool = False

    def feed(self, data: bytes) -> None:
        """Read data from the socket."""
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        count, in_string = self.count, self._in_string
        for line in lines:
            if in_string:
                in_string = False
                count += 1
            elif line[:1] == b"$":
                in_string = True
            else:
                if line[:1] == b"-":
                    self.errors[count] = line[1:].decode("utf-8", "replace")
                count += 1
        self.count, self._in_string = count, in_string
        if lines:
            self.last = lines[-1]
