"""The pages of the overview, as a test asks for them."""

from typing import Any

from django.test import Client

from django_outbox.admin import overview_page
from django_outbox.admin.overview_groups import GROUP_OPERATIONS


def address(view: str = "changelist", **parameters: str) -> str:
    if view in {operation.name for operation in GROUP_OPERATIONS}:
        return overview_page.address("admin", f"outboxmessage_{view}", **{"using": "default", **parameters})
    return overview_page.address("admin", f"overview_{view}", **parameters)


def confirm(client: Client, url: str, **fields: str) -> Any:
    """Ask for the confirmation of an operation, and submit its form."""
    form = {"state": client.get(url).context["state"], **fields}
    return client.post(url, form)


def run_to_the_end(client: Client, url: str, **fields: str) -> int:
    """Submit a form, and all that follow it; return the number of requests."""
    return finish(client, url, client.post(url, {"reason": "", **fields}))


def finish(client: Client, url: str, response: Any) -> int:
    """Submit the forms that follow a response; return the number of requests."""
    for requests in range(1, 100):
        if response.status_code == 302:
            return requests
        response = client.post(url, {"state": response.context["state"]})
    raise AssertionError("it never ends")
