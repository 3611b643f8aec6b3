"""Names of destinations that depend on the message."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from django_outbox.brokers.options import Template
from tests.support.claimed import make_message

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{topic}", "orders"),
        ("shop.{type}.{key}", "shop.order.created.k-1"),
        ("fixed", "fixed"),
        ("{{{key}}}", "{k-1}"),
    ],
)
def test_placeholders_stand_for_fields_of_the_message(template: str, name: str):
    assert Template("topic", template).render(make_message("orders", key="k-1")) == name


@pytest.mark.parametrize("template", ["{topic}", "x.{topic}"])
def test_a_blank_topic_means_the_type(template: str):
    assert Template("topic", template).render(make_message("")).endswith("order.created")


@pytest.mark.parametrize(
    "template", [None, "", 5, "{id}", "{}", "{key!r}", "{key:>9}", "{key.x}", "{key[0]}", "{", "}"]
)
def test_a_template_that_cannot_be_read_names_the_option(template: object):
    with pytest.raises(ImproperlyConfigured, match=r"^stream is "):
        Template("stream", template)


@given(topic=TEXT, key=TEXT)
def test_values_are_not_read_as_templates(topic: str, key: str):
    message = make_message(topic, key=key)
    assert Template("topic", "{topic}|{key}").render(message) == f"{message.destination}|{key}"
