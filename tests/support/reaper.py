"""Ends what the suite has started, however the suite itself ends.

It reads lines from standard input: `+1234` and `-1234` for a process group that began or ended. When the input ends,
for the suite is done or was killed, it kills the groups that are left and removes the directory that is its argument.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def main(directory: str) -> None:
    """Wait for the end of the input, then clean up."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line.startswith("+") else groups.discard)(group)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            return
        # A process that is just dying may have written another file.
        time.sleep(0.1)


if __name__ == "__main__":
    # A Ctrl-C in the terminal is for the suite, which closes the input when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main(sys.argv[1])
