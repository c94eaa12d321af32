"""Runs steps one after another, each within its time limit; a failure of one does not stop others.

Where steps need an engine of the ladder, it is the first rung that has passed.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from batchproof.places import ROOT
from tests.gpu.plan import PART_S, Options, Step

LEAST_S = 10.0  # with less time left, a step is not started
GRACE_S = 10.0  # between the interrupt and the kill
MAX_LINES, MAX_COLUMNS = 14, 220  # of a step's output that are shown
VARIABLES = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step: ok, FAILED, STOPPED (at its time limit, or with the run), no time
    left, or not run (no rung of the ladder has passed)."""

    name: str
    state: str
    seconds: float = 0.0
    finding: str = ""  # the last line of its output

    @property
    def is_good(self) -> bool:
        return self.state == "ok"

    def __str__(self) -> str:
        return f"{self.name:16} {self.state:12} {self.seconds:5.0f} s  {self.finding}"[:MAX_COLUMNS]


class Driver:
    """The output of a part goes to a log of its own; what is shown goes to `report` as well."""

    def __init__(self, out: Path, rungs: Sequence[Options] = ()) -> None:
        """`rungs`: options of the engine, the fastest first, of which steps get the first that
        passes."""
        self.outcomes: list[Outcome] = []
        self._out = out
        self._rungs = list(rungs)
        self._is_climbed = False
        self._log = out / "log.txt"

    def run(self, part: str, steps: Sequence[Step], for_s: float = PART_S) -> None:
        """Runs the steps; each may use its own time and what earlier ones left. Where it is too
        little for all, the last lose theirs. Raises `KeyboardInterrupt` once the step has ended."""
        self._log = self._out / f"{part}-log.txt"
        self._log.write_text("")
        deadline = monotonic() + for_s
        self.report(f"##### {part}: {len(steps)} steps, at most {for_s:.0f} s")
        for index, step in enumerate(steps):
            later_s = sum(each.limit_s for each in steps[index + 1 :])
            left_s = deadline - monotonic()
            if step.is_ladder:
                self._climb(step, deadline)
            elif step.has_rungs and not self._rungs:
                self._conclude(Outcome(step.name, "not run", finding="no rung has passed"))
            else:
                rung = self._rungs[0] if step.has_rungs else {}
                self._run(step.on(rung), min(left_s, max(step.limit_s, left_s - later_s)))

    def _climb(self, step: Step, deadline: float) -> None:
        """Runs the step on one rung after the other until it passes; the first time only."""
        while self._rungs and not self._is_climbed:
            limit_s = min(step.limit_s, deadline - monotonic())
            self._is_climbed = self._run(step.on(self._rungs[0]), limit_s)
            if not self._is_climbed:
                del self._rungs[0]

    def report(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            print(line, file=log)
        print(line, flush=True)

    def _conclude(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.report(f"=== {outcome}")

    def _run(self, step: Step, limit_s: float) -> bool:
        """Returns whether the step has passed. Raises `KeyboardInterrupt` once it has ended."""
        if limit_s < min(LEAST_S, step.limit_s / 2):
            self._conclude(Outcome(step.name, "no time left"))
            return False
        self.report(f"=== {step.name}: begins, at most {limit_s:.0f} s")
        is_cut_off = False
        with self._log.open("ab") as log:
            log.write(f"$ python {shlex.join(step.arguments)}\n".encode())
            log.flush()
            start, began = log.tell(), monotonic()
            try:
                status = _finished([sys.executable, *step.arguments], step, log.fileno(), limit_s)
            except KeyboardInterrupt:
                status, is_cut_off = None, True
        said = self._log.read_bytes()[start:].decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        for line in lines[-MAX_LINES:]:
            print(f"    {line[:MAX_COLUMNS]}", flush=True)
        state = {0: "ok", None: "STOPPED"}.get(status, "FAILED")
        self._conclude(Outcome(step.name, state, monotonic() - began, "".join(lines[-1:]).strip("= ")))
        if is_cut_off:
            raise KeyboardInterrupt
        return status == 0


def _finished(command: Sequence[str], step: Step, output: int, limit_s: float) -> int | None:
    """Returns the exit status, or None at the time limit. All child processes are ended."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **VARIABLES, **dict(step.variables)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
        process.send_signal(signal.SIGINT)  # pytest then reports what it has, and ends its workers
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        if isinstance(why, KeyboardInterrupt):
            raise
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
