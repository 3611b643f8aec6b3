"""`Overview`: the overview's entry in the admin."""

from django.utils.translation import gettext_lazy as _

from django_outbox.models.message import OutboxMessage


class Overview(OutboxMessage):
    """The overview in the admin, which lists only models. It has no table and no permissions."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
