"""Helpers for tests of the admin."""

import datetime
import re
from collections.abc import Iterable, Iterator, Sequence
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urljoin, urlsplit

from django.contrib.auth.models import Permission, User
from django.db import router, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_outbox.admin.locking import Target
from django_outbox.admin.operations import Operation, Progress, change
from django_outbox.models import OutboxMessage, Status
from django_outbox.stores.clock import read_clock

CHANGELIST = reverse("admin:django_outbox_outboxmessage_changelist")
TIME_OF = {Status.PENDING: "available_at", Status.PROCESSED: "processed_at", Status.FAILED: "failed_at"}


def put(status: Status, count: int = 1, *, using: str = "default", age: float = 0, **fields: Any) -> list[int]:
    """Write messages that came into a state `age` seconds ago, each a second before the next one; return their ids."""
    now = timezone.now()
    for n in range(count):
        times: dict[str, Any] = dict.fromkeys(TIME_OF.values())
        times[TIME_OF[status]] = now - datetime.timedelta(seconds=age + count - 1 - n)
        values = {"type": "order.created", "payload": {"n": n}, "error": "no queue" if status is Status.FAILED else ""}
        OutboxMessage.objects.using(using).create(**{**values, **times, **fields})
    newest = OutboxMessage.objects.using(using).order_by("-pk").values_list("pk", flat=True)[:count]
    return sorted(newest)


class Applied(NamedTuple):
    targets: list[Target]
    changed: int


def apply(operation: Operation, ids: Sequence[int]) -> Applied:
    using = router.db_for_write(OutboxMessage)
    progress = Progress("", len(ids), read_clock(using).isoformat(), ids)
    with transaction.atomic(using=using):
        return Applied(*change(operation, ids, using, progress, by=""))


def confirm(client: Client, url: str, ids: Sequence[int], **fields: str) -> Any:
    """Ask for the confirmation of an operation on messages, submit its form, and follow the redirection."""
    page = client.post(url, {"ids": ",".join(map(str, ids))})
    return client.post(page.context["action_url"], {"state": page.context["state"], **fields}, follow=True)


def client_with(*permissions: str) -> Client:
    """A client that is logged in as a member of the staff with these permissions on outbox messages, `view` for one."""
    user = User.objects.create_user(f"staff-{'-'.join(permissions)}", is_staff=True)
    wanted = Permission.objects.filter(codename__in=[f"{name}_outboxmessage" for name in permissions])
    assert len(wanted) == len(permissions)
    user.user_permissions.set(wanted)
    client = Client()
    client.force_login(user)
    return client


def url(name: str, *args: Any) -> str:
    return reverse(f"admin:django_outbox_outboxmessage_{name}", args=args)


def listed(response: Any) -> list[int]:
    assert response.status_code == 200
    return [message.pk for message in response.context["cl"].result_list]


def text(response: Any) -> str:
    return str(response.content.decode())


def statuses(using: str = "default") -> dict[int, Status]:
    return {message.pk: message.status for message in OutboxMessage.objects.using(using)}


def crawl(client: Client, addresses: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the address and the HTML of the admin's pages of the outbox, found by links; one page of each kind."""
    waiting = ["/admin/", url("changelist"), *addresses]
    found = set(waiting)
    while waiting:
        address = waiting.pop()
        response = client.get(address)
        if response.status_code != 200:
            continue
        page = text(response)
        yield address, page
        for link in re.findall(r'(?:href|action)="([^"]*)"', page):
            target = urlsplit(urljoin(address, unescape(link)))
            kind = re.sub(r"\d+", "0", target.path) + " ".join(sorted(parse_qs(target.query)))
            if "django_outbox" in target.path and kind not in found:
                found.add(kind)
                waiting.append(target.geturl())
