"""Python scripts that run as processes; `script_fixtures` starts them."""

import subprocess
from collections.abc import Callable

StartProcess = Callable[..., "subprocess.Popen[bytes]"]


def ends_with(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code, within a minute: a hanging process would hang for two or more."""
    return process.wait(60)
