"""How a program ends, by itself or by us."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

GRACE_S = 1.0  # to end by itself


def how_it_ended(popen: subprocess.Popen[bytes]) -> str:
    """Of a program that has closed its stdout, or is gone."""
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    status = popen.returncode
    if status is None:
        return "closed its stdout"
    return f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"


def kill_group(popen: subprocess.Popen[bytes]) -> None:
    """With all it has started: it leads a process group."""
    with suppress(ProcessLookupError, PermissionError):  # the latter where only zombies are left
        os.killpg(popen.pid, signal.SIGKILL)


def end(popen: subprocess.Popen[bytes]) -> None:
    """Ask it to end by closing its stdin, then kill what is left, and give all back."""
    assert popen.stdin, "it is a pipe"
    popen.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    kill_group(popen)
    popen.wait()
    for pipe in (popen.stdout, popen.stderr):
        assert pipe, "it is a pipe"
        pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
