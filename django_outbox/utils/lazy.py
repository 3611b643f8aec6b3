"""Import of the public names, which need Django's models and are imported when they are first used."""

from importlib import import_module
from typing import Any


def import_name(module: str, name: str) -> Any:
    """Return a name of a module.

    Raises:
        ImproperlyConfigured: the app is not installed.
    """
    try:
        return getattr(import_module(module), name)
    except RuntimeError as error:
        # Django's own error names a model that the project has never heard of.
        if "INSTALLED_APPS" not in str(error):
            raise
        from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 - settings may import this package

        raise ImproperlyConfigured("Add 'django_outbox' to INSTALLED_APPS.") from error
