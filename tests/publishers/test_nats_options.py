"""The options of the JetStream publisher: errors with the remedy, and what is shown."""

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.nats import JetStreamPublisher
from tests.support.nats.tools import MakeJetStream, Nats, nats_url

pytest_plugins = ["tests.support.nats.fixtures"]

URL = "nats://outbox:s3cret@127.0.0.1:4222"

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no servers": ({"servers": ()}, "servers is missing; set it to a URL like"),
    "scheme": ({"servers": "http://outbox:s3cret@host"}, "servers: a URL must begin with nats:// or tls://"),
    "unreadable": ({"servers": "nats://outbox:s3cr/et@host"}, "user, password and path percent-encoded"),
    "subject": ({"subject": "shop.{id}"}, "subject is 'shop.{id}'; its placeholders must be"),
    "invalid subject": ({"subject": "shop.*.{topic}"}, "subject is 'shop.*.{topic}': it has a wildcard"),
    "stream": ({"stream": "shop.orders"}, "stream is 'shop.orders'; it must be a name without"),
    "domain": ({"domain": 7}, "domain is 7; it must be a name"),
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


def test_a_file_that_is_neither_credentials_nor_a_seed_is_an_error_that_does_not_show_it(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("s3cret")
    with pytest.raises(ImproperlyConfigured, match=r"is neither a \.creds file") as caught:
        JetStreamPublisher("shop", servers="nats://host", credentials=str(path))
    assert "s3cret" not in str(caught.value)


def test_the_description_shows_no_login():
    publisher = JetStreamPublisher("shop", servers=[URL, "tls://token@[::1]"], stream="ORDERS", subject="shop.{topic}")
    assert publisher.describe() == (
        "NATS JetStream at nats://127.0.0.1:4222, tls://[::1]:4222, subject 'shop.{topic}', stream 'ORDERS'"
    )


def test_check_names_a_missing_stream_and_a_missing_subject(nats: Nats, make_jetstream: MakeJetStream):
    stream, other = nats.stream(), nats.stream()
    assert make_jetstream(stream=stream).check() == []
    assert make_jetstream(stream=stream, subject=stream).check() == []
    assert make_jetstream(stream="NONE").check() == [
        "there is no stream 'NONE'; create it, or correct the option stream"
    ]
    assert make_jetstream(subject="outbox-test-none").check() == [
        "no stream has the subject 'outbox-test-none'; add it to a stream's subjects, or correct the option subject"
    ]
    assert make_jetstream(stream=stream, subject=other).check() == [
        f"the subject '{other}' belongs to the stream '{other}'; correct the option stream or subject"
    ]


def test_a_domain_that_does_not_exist_is_named(make_jetstream: MakeJetStream):
    (problem,) = make_jetstream(nats_url(), domain="hub").check()
    assert "JetStream is not enabled" in problem
