"""Python scripts that run as processes; `script_fixtures` starts them."""

import subprocess
from collections.abc import Callable

StartProcess = Callable[..., "subprocess.Popen[bytes]"]


def ends_with(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code, within ten seconds: a hanging process would hang for a minute or more."""
    return process.wait(10)
