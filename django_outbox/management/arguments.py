"""Arguments of commands, and their types: each type reads a text, or raises an error that states what it must be."""

import argparse
import datetime
import re

from django.core.management.base import CommandError
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_outbox.conf import get_settings
from django_outbox.retention.purge import MAX_AGE

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def whole_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0 and up to an hour."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to 3600")
    return number


def days(text: str) -> datetime.timedelta:
    """Read an age in days, up to a hundred years."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_AGE.days:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 0 to {MAX_AGE.days:,}")
    return datetime.timedelta(days=number)


def moment(text: str) -> datetime.datetime | datetime.timedelta:
    """Read a time in ISO 8601, in the current time zone unless it names another one, or an age such as `2h`."""
    age = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    if age:
        ago = datetime.timedelta(**{UNITS[age[2]]: int(age[1])})
        if ago > MAX_AGE:
            raise argparse.ArgumentTypeError(f"{text!r} is more than a hundred years ago")
        return ago
    try:
        time = parse_datetime(text)
        if time is None and (date := parse_date(text)):
            time = datetime.datetime.combine(date, datetime.time.min)
    except ValueError:
        time = None
    if time is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid time: use one such as 2026-05-31T08:30, with an offset such as +02:00 unless it "
            "is in the current time zone, or an age such as 90s, 30m, 2h, 1d or 1w"
        )
    return make_aware(time) if is_naive(time) else time


def require_publisher(alias: str) -> str:
    """Return the alias of a publisher. Raises `CommandError` if it is not in the settings."""
    publishers = get_settings().publishers
    if alias not in publishers:
        raise CommandError(f"There is no publisher {alias!r}; OUTBOX has {', '.join(sorted(publishers))}.")
    return alias


def subject(publisher: str, type: str) -> str:
    """Return what is paused as it is written on the command line."""
    return f"--publisher {publisher}" + (f" --type {type}" if type else "")


def describe(publisher: str, type: str) -> str:
    return f"the type {type!r} of the publisher {publisher!r}" if type else f"the publisher {publisher!r}"
