"""Read options that are URLs of a broker. No error shows a URL, because it may hold a password."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured


class UrlOption(NamedTuple):
    """An option that is a URL, or a list of URLs.

    Args:
        name: its name.
        example: such a URL, with a user and a password.
        schemes: the schemes that a URL may have.
    """

    name: str
    example: str
    schemes: tuple[str, ...]

    def read(self, value: object) -> Iterator[tuple[str, SplitResult]]:
        """Yield each URL as it is, and in its parts.

        Raises:
            ImproperlyConfigured: it is missing, is something else, or a URL cannot be read.
        """
        urls = [value] if isinstance(value, str) else value
        if not isinstance(urls, list | tuple) or not all(isinstance(each, str) for each in urls):
            raise ImproperlyConfigured(f'{self.name} must be a URL like "{self.example}", or a list of such URLs.')
        if not urls or "" in urls:
            raise ImproperlyConfigured(
                f'{self.name} is missing; set it to a URL like "{self.example}", or to a list of such URLs.'
            )
        for url in urls:
            yield url, self._split(url)

    @property
    def unreadable(self) -> ImproperlyConfigured:
        """The error about a URL that cannot be read."""
        return ImproperlyConfigured(
            f"{self.name}: a URL cannot be read (it is not shown because it may hold a password); write it as "
            f'"{self.example}", with every special character of user, password and path percent-encoded: '
            '"@" as %40, "/" as %2F, "#" as %23.'
        )

    def _split(self, url: str) -> SplitResult:
        scheme, separator, _rest = url.partition("://")
        if scheme not in self.schemes or not separator:
            *others, last = (f"{each}://" for each in self.schemes)
            names = f"{', '.join(others)} or {last}"
            raise ImproperlyConfigured(f'{self.name}: a URL must begin with {names}, as in "{self.example}".')
        try:
            parts = urlsplit(url)
            is_valid = parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise self.unreadable
        return parts
