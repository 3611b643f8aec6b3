"""Import of public names when they are first used: they need Django's models, which a package must not import."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, given its public names by the modules that they are in.

    It raises ImproperlyConfigured if the app is not installed.
    """
    homes = {name: f"{package}.{module}" for module, found in names.items() for name in found}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except RuntimeError as error:
            # Django's own error names a model that the project has never heard of.
            if "INSTALLED_APPS" not in str(error):
                raise
            from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 - settings may import this package

            raise ImproperlyConfigured("Add 'django_outbox' to INSTALLED_APPS.") from error

    return find
