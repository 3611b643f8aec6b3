"""The options of CeleryPublisher, and the settings of the app that it uses."""

from typing import Any
from unittest import mock

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.celery import CeleryPublisher
from tests.support.celery.tools import PATH, MakeApp

pytest_plugins = ["tests.support.celery.app_fixtures"]


def improper(**options: Any) -> str:
    with pytest.raises(ImproperlyConfigured) as caught:
        CeleryPublisher("celery", **options)
    return str(caught.value)


def test_the_app_must_be_a_celery_app():
    assert "the path of the Celery app" in improper(app="")
    assert "is a module; name the Celery app" in improper(app="json")
    assert "No module named 'nowhere'" in improper(app="nowhere.celery:app")
    assert "no attribute 'missing'" in improper(app="tests.support.celery.app:missing")
    assert "is a function; name the Celery app" in improper(app="tests.support.celery.app:make_app")
    with pytest.raises(TypeError):
        CeleryPublisher("celery")  # type: ignore[call-arg]


@pytest.mark.parametrize("timeout", [0, -1, True, "1", 100_000])
def test_the_timeout_must_be_seconds(make: MakeApp, timeout: object):
    make(settings.AMQP_URL)
    assert "a number of seconds above 0" in improper(app=PATH, timeout=timeout)


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ({"task_protocol": 1}, "task_protocol"),
        ({"broker_url": "nonsense://:secret@host"}, "broker_url of the Celery app cannot be used"),
        ({"broker_url": "redis://one;redis://two:secret"}, "broker_url of the Celery app cannot be used"),
        ({"broker_login_method": "EXTERNAL"}, "broker_login_method is 'EXTERNAL'"),
        ({"broker_use_ssl": {"cert_reqs": 0}}, "cert_reqs=CERT_NONE"),
        ({"broker_use_ssl": {"ca_certs": "/missing.pem"}}, "/missing.pem"),
    ],
    ids=["protocol", "transport", "port", "login", "certificate", "file"],
)
def test_settings_of_the_app_that_cannot_be_used_are_refused(make: MakeApp, conf: dict[str, Any], text: str):
    make(settings.AMQP_URL).conf.update(conf)
    found = improper(app=PATH)
    assert text in found
    assert "secret" not in found


def test_the_broker_is_described_without_secrets(make: MakeApp):
    make("amqp://user:secret@one:5673/vhost;amqp://user:secret@two//")
    assert CeleryPublisher("celery", app=PATH).describe() == (
        f"Celery app {PATH}, RabbitMQ at amqp://one:5673/vhost, amqp://two:5672/%2F"
    )
    make("redis://user:secret@one:6380/3?ssl_cert_reqs=required")
    assert CeleryPublisher("celery", app=PATH).describe() == f"Celery app {PATH}, redis://user:**@one:6380/3"


def test_tls_by_the_scheme_of_the_url_is_used_on_each_node(make: MakeApp):
    make("amqps://user:secret@one//;amqps://user:secret@two:5679//")
    found = CeleryPublisher("celery", app=PATH).describe()
    assert "amqps://one:5671/%2F, amqps://two:5679/%2F" in found


def test_the_driver_of_rabbitmq_is_named_if_it_is_missing(make: MakeApp):
    make(settings.AMQP_URL)
    module = "django_outbox.brokers.celery.rabbitmq_tasks"
    with mock.patch.dict("sys.modules", {module: None}):
        assert 'pip install "django-transactional-outbox[celery,rabbitmq]"' in improper(app=PATH)
