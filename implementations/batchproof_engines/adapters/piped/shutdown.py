"""How a program ends: by itself, by request or by force."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

GRACE_S = 1.0  # for a program to end by itself


def how_it_ended(popen: subprocess.Popen[bytes]) -> str:
    """Returns how a program ended that has closed its stdout or exited, as a predicate for a
    sentence."""
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    status = popen.returncode
    if status is None:
        return "closed its stdout"
    return f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"


def kill_group(popen: subprocess.Popen[bytes]) -> None:
    """Kills the program and everything it has started; it leads a process group."""
    with suppress(ProcessLookupError, PermissionError):  # the latter if only zombies are left
        os.killpg(popen.pid, signal.SIGKILL)


def end(popen: subprocess.Popen[bytes]) -> None:
    """Asks the program to end by closing its stdin, then kills what is left and releases all
    resources."""
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
