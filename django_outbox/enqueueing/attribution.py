"""`attributed`: who and what causes the messages that are enqueued."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django_outbox.enqueueing.validation import check_name
from django_outbox.tracing import attribution


@contextmanager
def attributed(*, actor: str | None = None, cause: str | uuid.UUID | None = None) -> Iterator[None]:
    """Add the headers `actor` and `cause` to every message that is enqueued inside the context.

    A header set on the message itself takes precedence. Contexts may be nested: an inner one replaces only what it is
    given. In async code, a context applies to its own task, and to tasks that are started in it. As a decorator, it is
    for plain functions only: a coroutine or a generator runs after the call, outside the context.

    Args:
        actor: who causes the messages, such as `user:7`; at most 255 bytes. Consumers receive it.
        cause: the `message_id` of the message that was handled when these were enqueued. Handlers of a relay have it
            already.

    Raises:
        InvalidMessage: an argument is not text, is too long, or has control characters.
    """
    headers = {}
    for name, value in (("actor", actor), ("cause", str(cause) if isinstance(cause, uuid.UUID) else cause)):
        if value is not None:
            check_name(name, value, None)
            # It may be lazy.
            headers[name] = str(value)
    token = attribution.set({**attribution.get(), **headers})
    try:
        yield
    finally:
        attribution.reset(token)
