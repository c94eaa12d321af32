"""Runs steps one after another, each within its time limit; a failure of one does not stop others."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
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
SKIPPED = 77  # the exit status of a step that lacks something, and names it in its last line
VARIABLES = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step: ok, skipped, FAILED, STOPPED (at its time limit) or no time left."""

    name: str
    state: str
    seconds: float
    finding: str = ""  # in one line

    @property
    def is_good(self) -> bool:
        return self.state in ("ok", "skipped")

    def __str__(self) -> str:
        return f"{self.name:16} {self.state:12} {self.seconds:5.0f} s  {self.finding}"[:MAX_COLUMNS]


class Driver:
    """All output goes to one log, in the order of the steps; what is shown goes to `report` as well."""

    def __init__(self, log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.write_bytes(log.read_bytes()[-LOG_BYTES // 2 :])

    def run(self, part: str, steps: Sequence[Step], for_s: float = PART_S) -> list[Outcome]:
        """Runs the steps and returns their outcomes; each may use its own time and what earlier ones
        left."""
        deadline = monotonic() + for_s
        self.report(f"##### {part}: {len(steps)} steps, at most {for_s:.0f} s")
        outcomes = []
        for index, step in enumerate(steps):
            later_s = sum(each.limit_s for each in steps[index + 1 :])
            limit_s = deadline - monotonic() - later_s
            if limit_s < min(LEAST_S, step.limit_s):
                outcome = Outcome(step.name, "no time left", 0.0)
                self.report(f"=== {outcome}")
            else:
                outcome = self._run(step, limit_s)
            outcomes.append(outcome)
        return outcomes

    def report(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            print(line, file=log)
        print(line, flush=True)

    def _run(self, step: Step, limit_s: float) -> Outcome:
        self.report(f"=== {step.name}: begins, at most {limit_s:.0f} s")
        with self._log.open("ab") as log:
            log.write(f"$ python {' '.join(step.arguments)}\n".encode())
            log.flush()
            start, began = log.tell(), monotonic()
            status = _finished([sys.executable, *step.arguments], step, log.fileno(), limit_s)
        seconds = monotonic() - began
        lines = self._trimmed(start).decode(errors="replace").splitlines()
        shown = [line for line in lines if re.search(step.shown, line)]
        state = {0: "ok", SKIPPED: "skipped", None: "STOPPED"}.get(status, "FAILED")
        telling = [line for line in shown if step.found and re.search(step.found, line)]
        finding = "; ".join(telling or _last(shown or lines))
        outcome = Outcome(step.name, state, seconds, " ".join(finding.strip("= ").split()))
        if len(shown) > MAX_LINES:  # the first lines say what failed, the last ones summarise
            left_out = f"... {len(shown) - MAX_LINES} lines more in {self._log.name}"
            shown = [*shown[: MAX_LINES // 2], left_out, *shown[-MAX_LINES // 2 :]]
        for line in shown if shown or state == "ok" else lines[-MAX_LINES:]:
            print(f"    {line[:MAX_COLUMNS]}", flush=True)
        self.report(f"=== {outcome}")
        return outcome

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
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then reports what it has, and ends its workers
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last(lines: Sequence[str]) -> list[str]:
    """Returns the last line that is not empty."""
    return [line for line in lines if line.strip()][-1:]


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    return ["##### summary", *map(str, outcomes)]
