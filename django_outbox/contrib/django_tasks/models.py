"""`TaskRecord`: the stored result of one task."""

from typing import ClassVar

from django.db import models
from django.tasks import TaskResultStatus
from django.utils.translation import gettext_lazy as _

from django_outbox.db.fields import PayloadField

MAX_PATH_LENGTH = 255
"""Maximum characters of a task's import path, which is the topic of its message."""


class TaskRecord(models.Model):
    """The result of a task, in the database of the task's message.

    If a relay runs the task in a transaction, the old record is seen until the commit; otherwise RUNNING is stored
    first.
    """

    objects: ClassVar[models.Manager["TaskRecord"]] = models.Manager()

    message_id = models.UUIDField(_("message ID"), primary_key=True)
    path = models.CharField(_("task"), max_length=MAX_PATH_LENGTH)
    backend = models.CharField(_("backend"), max_length=255)
    queue_name = models.CharField(_("queue"), max_length=255)
    publisher = models.CharField(_("publisher"), max_length=63)
    args = PayloadField(_("arguments"))
    kwargs = PayloadField(_("keyword arguments"))
    status = models.CharField(
        _("status"), max_length=10, choices=TaskResultStatus.choices, default=TaskResultStatus.READY
    )
    run_after = models.DateTimeField(_("run after"), null=True)
    enqueued_at = models.DateTimeField(_("enqueued at"))
    started_at = models.DateTimeField(_("started at"), null=True)
    last_attempted_at = models.DateTimeField(_("last attempted at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    return_value = models.JSONField(_("return value"), null=True)
    errors = models.JSONField(_("errors"), default=list)
    worker_ids = models.JSONField(_("workers"), default=list)

    class Meta:
        verbose_name = _("task result")
        verbose_name_plural = _("task results")
        default_permissions = ("view",)
        # The purge finds finished results by the one, and results that will never be finished by both.
        indexes = [models.Index(fields=["finished_at", "enqueued_at"], name="outbox_tasks_finished")]

    def __str__(self) -> str:
        return f"{self.path} {self.message_id}"
