"""Subjects of NATS: which ones a message may be published to."""

import re

WHITESPACE_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]")

SYSTEM_TOKENS = ("$JS", "$SYS")
"""First tokens of subjects on which NATS itself serves requests: a message there would be a command."""

MAX_SUBJECT_BYTES = 2048
"""Maximum bytes of a subject in UTF-8. The server closes the connection if the line that announces a message exceeds
its `max_control_line`, which is 4096 bytes by default, and has to hold the reply subject too."""


def explain_invalid_subject(subject: str) -> str:
    """Return why a message cannot be published to a subject, or an empty string.

    The rules are those of https://docs.nats.io/nats-concepts/subjects; the server does not check all of them.
    """
    tokens = subject.split(".")
    if not subject:
        reason = "it is blank"
    elif WHITESPACE_OR_CONTROL.search(subject):
        reason = "it contains whitespace or a control character"
    elif "" in tokens:
        reason = "it has an empty token: a dot at its beginning or end, or two dots in a row"
    elif "*" in tokens or ">" in tokens:
        reason = "it has a wildcard (* or >), which is only for subscribers"
    elif tokens[0] in SYSTEM_TOKENS:
        reason = f"it begins with {tokens[0]}, where NATS itself serves requests"
    elif len(subject.encode("utf-8", "replace")) > MAX_SUBJECT_BYTES:
        reason = f"it is longer than {MAX_SUBJECT_BYTES:,} bytes"
    else:
        reason = ""
    return reason
