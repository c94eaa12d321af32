"""Runs steps one after another, each within its time limit; a failure of one does not stop others.

Where steps need an engine of the ladder, it is the first rung that has passed.
"""

import ctypes
import os
import re
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
from tests.gpu.plan import PART_S, Step

LEAST_S = 10.0  # with less time left, a step is not started
GRACE_S = 10.0  # between the interrupt and the kill
HEAD_BYTES, TAIL_BYTES = 300_000, 150_000  # of a step's output that the log keeps
LOG_BYTES = 8 << 20  # of the log of earlier runs
MAX_LINES, MAX_COLUMNS = 14, 220  # of a step's output that are shown
PR_SET_PDEATHSIG = 1
VARIABLES = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step: ok, FAILED, STOPPED (at its time limit, or with the run), no time
    left, or not run (no rung of the ladder has passed)."""

    name: str
    state: str
    seconds: float = 0.0
    finding: str = ""  # in one line
    engine: str = ""  # the rung, if the step needs one
    has_figures: bool = False  # it has said what it was run for

    @property
    def is_good(self) -> bool:
        return self.state == "ok"

    def __str__(self) -> str:
        on = f"on {self.engine}: " if self.engine not in self.finding else ""
        return f"{self.name:16} {self.state:12} {self.seconds:5.0f} s  {on}{self.finding}"[:MAX_COLUMNS]


class Driver:
    """All output goes to one log, in the order of the steps; what is shown goes to `report` as well."""

    def __init__(self, log: Path, rungs: Sequence[str] = ()) -> None:
        """`rungs`: engines, the fastest first, of which steps get the first that passes."""
        self.outcomes: list[Outcome] = []
        self._rungs = list(rungs)
        self._is_climbed = False
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.write_bytes(log.read_bytes()[-LOG_BYTES // 2 :])

    def run(self, part: str, steps: Sequence[Step], for_s: float = PART_S) -> None:
        """Runs the steps; each may use its own time and what earlier ones left. Where it is too
        little for all, the last lose theirs. Raises `KeyboardInterrupt` once the step has ended."""
        deadline = monotonic() + for_s
        self.report(f"##### {part}: {len(steps)} steps, at most {for_s:.0f} s")
        for index, step in enumerate(steps):
            later_s = sum(each.limit_s for each in steps[index + 1 :])
            left_s = deadline - monotonic()
            self._run_on_rungs(step, min(left_s, max(step.limit_s, left_s - later_s)), deadline)

    def _run_on_rungs(self, step: Step, limit_s: float, deadline: float) -> None:
        """Runs a step: the ladder's on one rung after the other until it passes, others on the rung
        that has passed, and on the next if they fail before they have a figure."""
        if step.is_ladder and self._is_climbed:
            return
        rungs = self._rungs if step.has_rungs else [""]
        if not rungs:
            self._leave_out(step, "not run", "no rung of the ladder has passed")
        until = deadline if step.is_ladder else monotonic() + limit_s
        for engine in tuple(rungs):
            limit_s = min(limit_s, until - monotonic())
            if limit_s < min(LEAST_S, step.limit_s / 2):
                self._leave_out(step, "no time left")
                return
            outcome = self._run(step.on(engine), step.engine_on(engine), limit_s)
            if step.is_ladder and not outcome.is_good:
                self._rungs.remove(engine)
            elif not step.found or outcome.has_figures or outcome.state != "FAILED":
                break
        self._is_climbed |= step.is_ladder

    def _leave_out(self, step: Step, state: str, why: str = "") -> None:
        self.outcomes.append(Outcome(step.name, state, finding=why))
        self.report(f"=== {self.outcomes[-1]}")

    def report(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            print(line, file=log)
        print(line, flush=True)

    def _run(self, step: Step, engine: str, limit_s: float) -> Outcome:
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
        seconds = monotonic() - began
        lines = self._trimmed(start).decode(errors="replace").splitlines()
        shown = [line for line in lines if re.search(step.shown, line)]
        state = {0: "ok", None: "STOPPED"}.get(status, "FAILED")
        telling = [line for line in shown if step.found and re.search(step.found, line)]
        finding = " ".join("; ".join(telling or _last(shown or lines)).strip("= ").split())
        outcome = Outcome(step.name, state, seconds, finding, engine, bool(telling))
        self._show(outcome, shown if shown or state == "ok" else lines[-MAX_LINES:])
        self.outcomes.append(outcome)
        if is_cut_off:
            raise KeyboardInterrupt
        return outcome

    def _show(self, outcome: Outcome, lines: list[str]) -> None:
        if len(lines) > MAX_LINES:  # the first lines say what failed, the last ones summarise
            left_out = f"... {len(lines) - MAX_LINES} lines more in {self._log.name}"
            lines = [*lines[: MAX_LINES // 2], left_out, *lines[-MAX_LINES // 2 :]]
        for line in lines:
            print(f"    {line[:MAX_COLUMNS]}", flush=True)
        self.report(f"=== {outcome}")

    def _trimmed(self, start: int) -> bytes:
        """Returns the log from `start` on, without its middle if it is too long."""
        with self._log.open("r+b") as log:
            log.seek(start)
            said = log.read()
            if len(said) > HEAD_BYTES + TAIL_BYTES:
                num_left_out = len(said) - HEAD_BYTES - TAIL_BYTES
                gap = f"\n... {num_left_out} bytes left out ...\n".encode()
                said = said[:HEAD_BYTES] + gap + said[-TAIL_BYTES:]
            log.seek(start)
            log.truncate()
            log.write(said if said.endswith(b"\n") or not said else said + b"\n")
        return said


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
        preexec_fn=_end_with_parent,  # noqa: PLW1509 (there is one thread)
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


def _end_with_parent() -> None:
    """Has Linux interrupt this process when the driver is killed: it would go on in its own session,
    and hold the device. A process that is started in the background ignores interrupts, so they are
    let in."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _last(lines: Sequence[str]) -> list[str]:
    """Returns the last line that is not empty."""
    return [line for line in lines if line.strip()][-1:]
