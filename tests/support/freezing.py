"""Freeze the process of a server: it answers nobody, while the kernel still takes connections and data."""

import os
import signal
import subprocess


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Return once all of its threads have stopped; a signal alone lets those of another core go on for a moment."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def thaw(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGCONT)
