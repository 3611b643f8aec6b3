"""Installs packages of the operating system, where apt-get is there and this user may."""

import functools
import os
import shutil
import subprocess


@functools.cache
def root_prefix() -> "list[str] | None":
    """Return what a command begins with to run as root: nothing, or sudo without a password; None if it may not."""
    if not hasattr(os, "geteuid"):
        return None
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if shutil.which("sudo") and not _quiet([*sudo, "true"]) else None


def run_as_root(*command: str) -> bool:
    """Run a command as root and return whether it succeeded; its output is shown."""
    prefix = root_prefix()
    # Not from the current directory, which another user may not be able to read.
    return prefix is not None and subprocess.call([*prefix, *command], cwd="/") == 0


def install(*packages: str) -> bool:
    """Install packages by their Debian names and return whether they are there now."""
    missing = [package for package in packages if not _installed(package)]
    if not missing:
        return True
    if not shutil.which("apt-get") or root_prefix() is None:
        return False
    print(f"apt-get install {' '.join(missing)}")
    _refresh()
    environment = ("env", "DEBIAN_FRONTEND=noninteractive")
    return run_as_root(*environment, "apt-get", "install", "--yes", "--no-install-recommends", "-q", *missing)


@functools.cache
def _refresh() -> None:
    run_as_root("apt-get", "update", "-q")


def _installed(package: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    # A package that was removed is still known to dpkg, by another status.
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


def _quiet(command: "list[str]") -> int:
    return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
