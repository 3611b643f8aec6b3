"""The names of an entry's fields. The publisher writes them, and the consumer reads them."""

ID = "id"
TYPE = "type"
TOPIC = "topic"
KEY = "key"
OCCURRED_AT = "occurred_at"
HEADERS = "headers"
PAYLOAD = "payload"
