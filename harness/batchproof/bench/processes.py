"""This process and those it has started: a released engine computes in one of its own.

Only Linux tells what another process does; elsewhere this process alone is seen.
"""

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
CPUCLOCK_SCHED = 2  # in the id of the CPU clock of a process, beside its number: clock_getcpuclockid(3)


def descendants() -> tuple[int, ...]:
    """Returns the numbers of all living processes that this one has started, and those they started."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it has ended
            # The name, in parentheses, may hold anything; state and parent come behind it.
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # it grows meanwhile
        found += children.get(pid, ())
    return tuple(found)


class CpuMeter:
    """`CpuMeter()`, run, `stop()`, `seconds()`: CPU time of this process and of those it has started.

    Looking at other processes costs milliseconds, which lie outside of the measured stretch.
    """

    def __init__(self) -> None:
        self._others_s = _cpu_of_others()
        self.own_s = time.process_time()  # once stopped: CPU seconds of this process alone

    def stop(self) -> None:
        """Ends the stretch, at the cost of reading one clock."""
        self.own_s = time.process_time() - self.own_s

    def seconds(self) -> float:
        """Returns the CPU seconds of the stretch that has been stopped. Called once, soon after
        `stop`: what other processes compute in between is counted."""
        return self.own_s + max(0.0, _cpu_of_others() - self._others_s)


def _cpu_of_others() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # those that were waited for
    seconds = ended.ru_utime + ended.ru_stime
    for pid in descendants():
        with suppress(OSError):  # it has ended
            seconds += time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    return seconds
