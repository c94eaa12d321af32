"""One planted fault before the conformance suite: the task of a worker, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from batchproof.run.registry import faults
from batchproof_lab.conformance_modules import conformance_functions, function_of
from batchproof_lab.shared_laboratory import process_laboratory
from batchproof_lab.suite_outcome import Effort
from batchproof_lab.suite_run import own_failures, run_suite


@dataclass(frozen=True, slots=True)
class Attempt:
    """Runs a fault on some models, in one session, by the tests of its promise until it is caught.

    `is_wide`: if those tests miss it, all others run too. `only`: this test function runs alone, to
    see whether it catches anything.
    """

    fault: str
    models: tuple[str, ...]
    seed: int
    is_wide: bool = False
    only: str | None = None

    @property
    def key(self) -> str:
        """Returns what identifies the attempt within its question."""
        how = ", by all tests" if self.is_wide else f", by {self.only} alone" if self.only else ""
        return f"{self.fault} on {'+'.join(self.models)}, seed {self.seed}{how}"

    @property
    def arguments(self) -> list[str]:
        """Returns pytest's arguments for seed and models."""
        return ["-x", f"--hypothesis-seed={self.seed}", *(f"--model={model}" for model in self.models)]


@dataclass(frozen=True, slots=True)
class Kill:
    """What the suite reported. `caught_by` is the function of the first test that failed; None: the
    fault survived.
    """

    caught_by: str | None = None
    broken: str | None = None  # the promise that failure named
    cause: str | None = None  # what its diagnosis named
    examples: int = 0  # workloads given to the engine until then, or in all
    seconds: float = 0.0
    functions: tuple[str, ...] = ()  # all test functions that caught it
    own_failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hunt:
    """An attempt and what came out."""

    attempt: Attempt
    kill: Kill


def make_attempt(attempt: Attempt, time_limit_s: float) -> Kill:
    """Runs the tests of the promise that the fault breaks and, in a wide attempt that they miss, all
    others. The time limit is in seconds, for one call of the engine.
    """
    declared = f"promise(id='{faults()[attempt.fault].promise.id}')"
    if attempt.only is not None:
        name = attempt.only.rpartition("::")[2]
        return _kill(attempt, ["-k", name, "--diagnose-for=0"], time_limit_s)
    by_promise = _kill(attempt, ["-m", declared], time_limit_s)
    if by_promise.functions or by_promise.own_failures or not attempt.is_wide:
        return by_promise
    by_others = _kill(attempt, ["-m", f"not {declared}"], time_limit_s)
    return replace(
        by_others,
        examples=by_promise.examples + by_others.examples,
        seconds=round(by_promise.seconds + by_others.seconds, 3),
    )


def _kill(attempt: Attempt, selection: list[str], time_limit_s: float) -> Kill:
    lab = process_laboratory("float32", time_limit_s)
    findings = run_suite(f"fault:{attempt.fault}", [*attempt.arguments, *selection], lab, _effort())
    first = findings.first
    caught = (function_of(each.test) for each in findings.catches if each.broken is not None)
    return Kill(
        caught_by=function_of(first.test) if first else None,
        broken=first.broken if first else None,
        cause=first.cause if first else None,
        examples=first.num_runs if first else findings.totals["num_runs"],
        seconds=round(first.seconds if first else findings.seconds, 3),
        functions=tuple(dict.fromkeys(caught)),
        own_failures=own_failures(findings),
    )


@cache
def _effort() -> Effort:
    """Returns the effort of a hunt. Generated workloads come first: a written case that fits says
    little about what seeds would find."""
    generated = (name for name, facts in conformance_functions().items() if facts.is_generated)
    return Effort(profile="default", first=tuple(generated))
