"""The options of the JetStream publisher: errors with the remedy, and what is shown."""

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.nats import JetStreamPublisher

pytest_plugins = ["tests.support.nats.fixtures"]

URL = "nats://outbox:s3cret@127.0.0.1:4222"

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no servers": ({"servers": ()}, "servers is missing; set it to a URL like"),
    "scheme": ({"servers": "http://outbox:s3cret@host"}, "servers: a URL must begin with nats:// or tls://"),
    "unreadable": ({"servers": "nats://outbox:s3cr/et@host"}, "user, password and path percent-encoded"),
    "subject": ({"subject": "shop.{id}"}, "subject is 'shop.{id}'; its placeholders must be"),
    "invalid subject": ({"subject": "shop.*.{topic}"}, "subject is 'shop.*.{topic}': it has a wildcard"),
    "inbox": ({"inbox_prefix": "a."}, "inbox_prefix is 'a.'; it must be a subject"),
    "timeout": ({"timeout": 0}, "timeout is 0; it must be a number of seconds above 0"),
    "window": ({"max_in_flight": 0}, "max_in_flight is 0; it must be a whole number from 1 to 10,000"),
    "source": ({"format": "cloudevents"}, "source is ''; CloudEvents need one"),
    "missing credentials": ({"servers": "nats://host", "credentials": "/none"}, "credentials: '/none' cannot be read"),
    "user and credentials": ({"credentials": "/none"}, "a URL in servers has a user; remove one of them"),
    "ssl without tls": ({"ssl": {}}, "every URL in servers must begin with tls://"),
}


@pytest.mark.parametrize(("options", "text"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_option_is_an_error_with_the_remedy(options: dict[str, Any], text: str):
    with pytest.raises(ImproperlyConfigured) as caught:
        JetStreamPublisher("shop", **{"servers": URL, **options})
    assert text in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_has_no_credentials_is_an_error_that_does_not_show_it(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("s3cret")
    with pytest.raises(ImproperlyConfigured, match=r"is not a \.creds file") as caught:
        JetStreamPublisher("shop", servers="nats://host", credentials=str(path))
    assert "s3cret" not in str(caught.value)


def test_the_description_shows_no_login():
    publisher = JetStreamPublisher("shop", servers=[URL, "tls://token@[::1]"], subject="shop.{topic}")
    assert publisher.describe() == ("NATS JetStream at nats://127.0.0.1:4222, tls://[::1]:4222, subject 'shop.{topic}'")
