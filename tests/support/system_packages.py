"""Install packages of the operating system, if apt-get is there and this user may run it.

Everything that runs as root is shown first. If a person sits at the terminal, they are asked.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys

NONINTERACTIVE = ("env", "DEBIAN_FRONTEND=noninteractive")

Command = tuple[str, ...]

UPDATE = ("apt-get", "update", "-q")

_answered_yes = False
_updated = False
"""Whether this process has updated the lists of packages."""


def answer_yes() -> None:
    """Answer every question of this process and of those that it starts with yes."""
    global _answered_yes  # noqa: PLW0603 - one answer holds for the whole process
    _answered_yes = True


@functools.cache
def root_prefix() -> list[str] | None:
    """Return the beginning of a command that runs as root, or None if this user may not.

    It is empty for root itself, else `sudo`, if that asks for no password.
    """
    if not hasattr(os, "geteuid"):
        return None
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if shutil.which("sudo") and not _quiet([*sudo, "true"]) else None


def run_as_root(*commands: Command, purpose: str) -> bool:
    """Show commands, run them as root in turn up to the first that fails, and return whether all succeeded.

    Args:
        commands: each one as a tuple of words. Their output is shown.
        purpose: why they are run, as a clause that follows "To".
    """
    global _updated  # noqa: PLW0603 - the lists hold for the whole process
    prefix, commands = root_prefix(), tuple(each for each in commands if not (_updated and each == UPDATE))
    if prefix is None or not confirm([(*prefix, *command) for command in commands], purpose):
        return False
    for command in commands:
        # "/" because another user may not be able to read the current directory.
        failed = subprocess.call([*prefix, *command], cwd="/")
        _updated = _updated or (command == UPDATE and not failed)
        # One unreachable source of packages need not matter; the installation shows whether it does.
        if failed and command != UPDATE:
            return False
    return True


def confirm(commands: list[Command], purpose: str) -> bool:
    """Show what is about to run, and return whether it may.

    A person at the terminal is asked. Without a terminal, as in CI, or with `--yes`, the answer is yes.
    """
    print(f"To {purpose}, this runs as root:")
    for command in commands:
        print(f"    {shlex.join(command)}")
    if _answered_yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return True
    try:
        answer = input("Go ahead? [y/N] ")
    except EOFError:
        print()
        answer = ""
    return answer.strip().lower() in ("y", "yes")


def install(*packages: str, purpose: str) -> bool:
    """Install packages by their Debian names and return whether they are installed now."""
    missing = missing_packages(*packages)
    return not missing or (can_install() and run_as_root(*install_commands(missing), purpose=purpose))


def missing_packages(*packages: str) -> list[str]:
    return [package for package in packages if not _installed(package)]


def can_install() -> bool:
    return bool(shutil.which("apt-get")) and root_prefix() is not None


def install_commands(packages: list[str]) -> list[Command]:
    """Return the commands that install packages, none for no packages."""
    if not packages:
        return []
    install = (*NONINTERACTIVE, "apt-get", "install", "--yes", "--no-install-recommends", "-q", *packages)
    return [UPDATE, install]


def _installed(package: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    # dpkg still knows a package that was removed, but with a different status.
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


def _quiet(command: list[str]) -> int:
    return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
