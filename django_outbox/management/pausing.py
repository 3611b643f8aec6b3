"""Arguments and wording of the commands that pause and resume."""

from django.core.management.base import CommandError, CommandParser

from django_outbox.conf import get_settings


def add_pause_arguments(parser: CommandParser, *, publisher: str | None = None) -> None:
    """Add the publisher and `--type`."""
    parser.add_argument(
        "publisher", metavar="PUBLISHER", nargs=publisher, help="Alias of the publisher in OUTBOX['PUBLISHERS']."
    )
    parser.add_argument(
        "--type", metavar="TYPE", default="", help="Only messages of exactly this type (default: the whole publisher)."
    )


def require_publisher(alias: str | None) -> str:
    """Return the alias of a publisher.

    Raises:
        CommandError: none was given, or it is not in the settings.
    """
    publishers = get_settings().publishers
    if alias is None or alias not in publishers:
        problem = "Name a publisher" if alias is None else f"There is no publisher {alias!r}"
        raise CommandError(f"{problem}; OUTBOX has {', '.join(sorted(publishers))}.")
    return alias


def describe(publisher: str, type: str) -> str:
    """Return what is paused, in words."""
    return f"the type {type!r} of the publisher {publisher!r}" if type else f"the publisher {publisher!r}"
