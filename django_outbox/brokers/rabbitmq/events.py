"""CloudEvents in messages of RabbitMQ.

AMQP 0-9-1 has no binding of the CloudEvents project, which has one for AMQP 1.0 only. This is the RabbitMQ binding of
Knative, which the SDKs for Python and Go follow:
https://github.com/knative-extensions/eventing-rabbitmq/blob/main/cloudevents-protocol-spec/spec.md
"""

from django_outbox.brokers import cloudevents
from django_outbox.messages import Message

PREFIX = "ce-"
"""Prefix of the headers that are attributes, in binary mode."""


class Events:
    """Turns messages into events, which are then encoded as any message is.

    Args:
        format: the option `format`, other than plain.
        source: the option `source`.
    """

    def __init__(self, format: str, source: str) -> None:
        self._is_structured = format == cloudevents.STRUCTURED
        self._source = source

    def convert(self, message: Message) -> Message:
        """Return the message with the attributes of its event, in its headers or around its payload."""
        # In structured mode too: readers detect binary mode by such headers.
        headers = {name: value for name, value in message.headers.items() if not name.lower().startswith(PREFIX)}
        if self._is_structured:
            try:
                return message._replace(payload=cloudevents.structured(message, self._source), headers=headers)
            except UnicodeEncodeError:
                # The same text is in a property or a header, and the encoder names it.
                return message
        for name, value in cloudevents.attributes(message, self._source).items():
            headers[PREFIX + name] = value
        return message._replace(headers=headers)
