"""The overview in the admin: whether messages are delivered, what stands in the way, and the operations that help."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from weakref import WeakSet

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import DatabaseError, connections, router, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_outbox.admin import overview_page as page
from django_outbox.admin.changelist import ReadOnly
from django_outbox.admin.display import breakable, number
from django_outbox.admin.listing import LIMIT, count_up_to
from django_outbox.admin.operations import (
    MAX_REASON_LENGTH,
    NOT_TYPED,
    Operation,
    is_typed,
    log,
    number_to_type,
    outcome,
    report_archive_failure,
    with_count,
    with_reason,
)
from django_outbox.admin.overview_groups import (
    GROUP_OPERATIONS,
    Group,
    Progress,
    advance,
    read_waiting,
    survey,
)
from django_outbox.conf import get_settings
from django_outbox.exceptions import ArchiveUnavailable
from django_outbox.models import MAX_NAME_LENGTH, OutboxMessage, OutboxMessageQuerySet, Overview, Status
from django_outbox.models.message import BATCH_SIZE
from django_outbox.monitoring import status
from django_outbox.monitoring.figures import NONE, Count
from django_outbox.monitoring.readings import holds_outbox
from django_outbox.monitoring.views import outside_transactions
from django_outbox.pausing import pause, resume
from django_outbox.text import describe

SALT = "django_outbox.admin.resume"
VIEW = "django_outbox.view_outboxmessage"
PAUSE = "django_outbox.pause_outboxmessage"
PERMISSIONS = {"pause": PAUSE, **{operation.name: operation.permission for operation in GROUP_OPERATIONS}}

SHOWN_OPERATIONS = 8
"""Number of operations that the overview lists."""

_WAITING = gettext_lazy("They become due at once and keep their attempts. Held messages remain held.")


_reordered = WeakSet[AdminSite]()
"""The sites with the overview first. A project may register its own subclass in its place."""


def _with_overview_first(admin_site: AdminSite) -> Callable[..., list[Any]]:
    """Return the site's `get_app_list`, with the overview first, and on the index the number of failed messages."""
    get_app_list = admin_site.get_app_list

    @wraps(get_app_list)
    def reordered(request: HttpRequest, *args: Any, **kwargs: Any) -> list[Any]:
        apps = get_app_list(request, *args, **kwargs)
        is_index = request.path == reverse("admin:index", current_app=admin_site.name)
        for models in (app["models"] for app in apps if app["app_label"] == Overview._meta.app_label):
            models.sort(key=lambda model: model["model"] is not Overview)
            if is_index and models[0]["model"] is Overview and (failed := _count_failed()):
                values = {"name": models[0]["name"], "count": failed}
                models[0]["name"] = _("%(name)s (%(count)s failed)") % values
        return apps

    return reordered


def _count_failed() -> Count:
    """Count the failed messages; none if they cannot be counted, so that the index of the project is shown anyway."""
    using = router.db_for_read(OutboxMessage)
    try:
        with transaction.atomic(using=using):
            return count_up_to(OutboxMessageQuerySet(OutboxMessage, using=using).failed().order_by("failed_at"), LIMIT)
    except DatabaseError:
        return NONE


@admin.register(Overview)
class OverviewAdmin(ReadOnly):
    """The overview page, and its operations on publishers, types and groups of messages."""

    refresh_seconds = 5
    """Seconds between two refreshes of the page."""
    resume_batch_size = BATCH_SIZE
    """Maximum number of held messages that one UPDATE makes due."""
    step_seconds = 1.0
    """Seconds after which an operation shows its progress."""

    def __init__(self, model: type[Overview], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        # Django sorts an app's models by name, and has no hook for another order.
        if admin_site not in _reordered:
            _reordered.add(admin_site)
            setattr(admin_site, "get_app_list", _with_overview_first(admin_site))  # noqa: B010 - mypy

    def get_urls(self) -> list[URLPattern]:
        views: dict[str, Any] = {"pause": self.pause_view, "resume": outside_transactions(self.resume_view)}
        views.update({operation.name: partial(self.group_view, operation=operation) for operation in GROUP_OPERATIONS})
        named = [
            path(f"{name}/", self.admin_site.admin_view(view), name=f"django_outbox_overview_{name}")
            for name, view in views.items()
        ]
        overview = self.admin_site.admin_view(self.changelist_view)
        return [
            path("", overview, name="django_outbox_overview"),
            # The admin's index links to this name.
            path("", overview, name="django_outbox_overview_changelist"),
            *named,
        ]

    # Permissions: who may see messages may see the overview.

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(VIEW)

    # The page.

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the overview, or with `?fragment=1` only the part of it that is refreshed."""
        self._require(request, VIEW)
        using = self._database(request)
        period = "day" if request.GET.get("period") == "day" else "hour"
        context: dict[str, Any] = {
            "using": using,
            "period": period,
            "refresh_seconds": self.refresh_seconds,
            "refresh_url": self._url(request, "overview", period=period),
            "list_url": self._list_url(request),
            "databases": [
                (alias, self._url(request, "overview", using=alias), alias == using) for alias in find_databases()
            ],
        }
        try:
            figures = status(using)
            waiting = read_waiting(figures)
        except DatabaseError as error:
            context["unavailable"] = describe(error)
        else:
            context.update(page.describe(figures, waiting, period, last_operations(), self.links(request, using)))
        if request.GET.get("fragment"):
            return TemplateResponse(request, "admin/django_outbox/overview/fragment.html", context)
        title = _("Outbox · %(database)s") % {"database": using}
        return self._show(request, "overview", title, **{**context, **(extra_context or {})})

    # Pause and resume.

    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for the type and a reason, and pause a publisher or a type."""
        self._require(request, VIEW, PAUSE)
        using, publisher, type = self._target(request)
        if publisher not in get_settings().publishers:
            raise Http404
        if len(type.encode()) > MAX_NAME_LENGTH:
            raise BadRequest("type")
        if request.method == "POST":
            reason = request.POST.get("reason", "").strip()[:MAX_REASON_LENGTH]
            done = pause(publisher, type, using=using, reason=reason, by=request.user.get_username())
            if done:
                log(request.user.pk, CHANGE, with_reason(_("Paused."), reason), subject=subject(publisher, type))
            text = _("Paused: %(subject)s.") if done else _("Already paused: %(subject)s.")
            self.message_user(request, text % {"subject": subject(publisher, type)}, messages.SUCCESS)
            return self._back(request)
        title = _("Pause %(publisher)s") % {"publisher": publisher}
        return self._show(request, "pause", title, type=type, max_length=MAX_REASON_LENGTH)

    def resume_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for confirmation, and resume a publisher or a type; held messages are released in steps."""
        self._require(request, VIEW, PAUSE)
        using, publisher, type = self._target(request)
        if not publisher:
            raise Http404
        what = subject(publisher, type)
        title = _("Resume %(subject)s") % {"subject": what}
        if request.method != "POST":
            return self._show(request, "resume", title, type=type)
        if "stop" in request.POST:
            text = _("Resumed: %(subject)s. Not all held messages are due yet; resume it again to finish.")
            self.message_user(request, text % {"subject": what}, messages.WARNING)
            return self._back(request)
        released = self._read_released(request, [using, publisher, type])
        result = resume(publisher, type, using=using, batch_size=self.resume_batch_size, max_seconds=self.step_seconds)
        if released is None and (result.was_paused or result.released):
            log(request.user.pk, CHANGE, _("Resumed."), subject=what)
        released = (released or 0) + result.released
        held = ngettext(
            "%(number)s held message is due again.", "%(number)s held messages are due again.", released
        ) % {"number": number(released)}
        if not result.complete:
            state = signing.dumps([using, publisher, type, released], salt=SALT)
            return self._show(request, "progress", title, text=held, state=state)
        text = _("Resumed: %(subject)s.") % {"subject": what}
        self.message_user(request, f"{text} {held}" if released else text, messages.SUCCESS)
        return self._back(request)

    # Requeue, discard and retry a group.

    def group_view(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        self._require(request, VIEW, operation.permission)
        values = [self._value(request, each) for each in ("publisher", "error_class", "type", "fingerprint")]
        group = Group(self._database(request), *values)
        if request.method == "POST" and "state" in request.POST:
            return self._continue(request, operation, group)
        return self._confirm(request, operation, group)

    def _confirm(self, request: HttpRequest, operation: Operation, group: Group) -> HttpResponse:
        """Show what an operation would change. The state in the form leaves out messages that join the group later."""
        found = survey(operation, group)
        if not found.count:
            self.message_user(request, _("These messages no longer exist."), messages.WARNING)
            return self._back(request)
        user_id = str(request.user.pk)
        progress = Progress(operation.name, group, found.until.isoformat(), found.count.number, user_id)
        effects = [(operation.blocking, found.blocking), (operation.not_blocking, found.not_blocking)]
        return self._show(
            request,
            "confirmation",
            operation.title,
            operation=replace(operation, explanation=_WAITING) if operation.state is Status.PENDING else operation,
            group=group,
            groups=[(breakable(group.type), breakable(group.error_class), number(found.count))],
            example=found.example,
            state=progress.sign(),
            type_number=number_to_type(operation, progress.expected),
            effects=[with_count(text, count) for text, count in effects if count],
            button=with_count(operation.button, found.count),
            max_length=MAX_REASON_LENGTH,
        )

    def _continue(self, request: HttpRequest, operation: Operation, group: Group) -> HttpResponse:
        try:
            progress = Progress.read(request.POST["state"], str(request.user.pk))
        except signing.BadSignature as error:
            raise BadRequest("state") from error
        if (progress.operation, progress.group) != (operation.name, group):
            raise BadRequest("state")
        if "stop" in request.POST:
            text = outcome(operation, progress.done, progress.done)
            self.message_user(request, _("Stopped. %(result)s") % {"result": text}, messages.WARNING)
            return self._back(request)
        if not progress.is_confirmed:
            if not is_typed(operation, progress.expected, request.POST):
                self.message_user(request, NOT_TYPED, messages.ERROR)
                return self._confirm(request, operation, group)
            progress = replace(progress, reason=request.POST.get("reason", "").strip()[:MAX_REASON_LENGTH])
        return self._step(request, operation, progress)

    def _step(self, request: HttpRequest, operation: Operation, progress: Progress) -> HttpResponse:
        try:
            progress = advance(operation, progress, by=request.user.get_username(), seconds=self.step_seconds)
        except ArchiveUnavailable as error:
            self.message_user(request, report_archive_failure(error), messages.ERROR)
            return self._back(request)
        text = outcome(operation, progress.done, progress.done)
        if not progress.finished:
            counts = {"done": progress.done, "expected": max(progress.done, progress.expected)}
            return self._show(request, "progress", operation.title, text=text, state=progress.sign(), **counts)
        self.message_user(request, text, messages.SUCCESS if progress.done else messages.WARNING)
        return self._back(request)

    # What the views share.

    def _show(self, request: HttpRequest, name: str, title: Any, /, **context: Any) -> HttpResponse:
        links = {"back_url": self._url(request, "overview"), "action_url": request.get_full_path()}
        return self.render(request, f"overview/{name}", title, **{**links, **context})

    def _require(self, request: HttpRequest, *permissions: str) -> None:
        if not request.user.has_perms(permissions):
            raise PermissionDenied

    def _database(self, request: HttpRequest) -> str:
        using = request.GET.get("using") or router.db_for_write(OutboxMessage)
        if using not in find_databases():
            raise Http404
        return using

    def _target(self, request: HttpRequest) -> tuple[str, str, str]:
        return self._database(request), self._value(request, "publisher"), self._value(request, "type")

    def _value(self, request: HttpRequest, name: str) -> str:
        values = request.POST if name in request.POST else request.GET
        return values.get(name, "").strip()

    def _read_released(self, request: HttpRequest, what: list[str]) -> int | None:
        """Return how many messages earlier steps of a resumption released; None in its first step."""
        if "state" not in request.POST:
            return None
        try:
            *known, released = signing.loads(request.POST["state"], salt=SALT)
        except signing.BadSignature as error:
            raise BadRequest("state") from error
        if known != what:
            raise BadRequest("state")
        return int(released)

    def _back(self, request: HttpRequest) -> HttpResponseRedirect:
        return HttpResponseRedirect(self._url(request, "overview"))

    def _url(self, request: HttpRequest, view: str, **parameters: str) -> str:
        name = "admin:django_outbox_overview" + ("" if view == "overview" else f"_{view}")
        found = page.query(**{"using": request.GET.get("using", ""), **parameters})
        return reverse(name, current_app=self.admin_site.name) + (f"?{found}" if found else "")

    def _list_url(self, request: HttpRequest) -> str:
        return reverse("admin:django_outbox_outboxmessage_changelist", current_app=self.admin_site.name)

    def links(self, request: HttpRequest, using: str) -> page.Links:
        in_list = using == router.db_for_read(OutboxMessage)

        def find_messages(**filters: str) -> str:
            return f"{self._list_url(request)}?{page.query(**filters)}" if in_list else ""

        def find_message(id: int) -> str:
            name = "admin:django_outbox_outboxmessage_change"
            return reverse(name, args=[id], current_app=self.admin_site.name) if in_list else ""

        allowed = frozenset(name for name, permission in PERMISSIONS.items() if request.user.has_perm(permission))
        return page.Links(partial(self._url, request), find_messages, find_message, allowed)


def find_databases() -> list[str]:
    """Return the aliases of the databases that may have an outbox, the router's first."""
    return list(dict.fromkeys([router.db_for_write(OutboxMessage), *filter(holds_outbox, connections)]))


def subject(publisher: str, type: str) -> str:
    """Return what is paused or resumed, in words."""
    return _("%(publisher)s: %(type)s") % {"publisher": publisher, "type": type} if type else publisher


def last_operations() -> list[LogEntry]:
    """Return the newest entries about messages and about the overview, with their users."""
    types = ContentType.objects.get_for_models(OutboxMessage, Overview, for_concrete_models=False).values()
    entries = LogEntry.objects.filter(content_type__in=list(types)).select_related("user")
    return list(entries.order_by("-pk")[:SHOWN_OPERATIONS])
