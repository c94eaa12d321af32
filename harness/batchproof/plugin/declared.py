"""What engines are declared to serve: refusing a model of these is a failure, any other a skip.

A built-in engine is declared by `batchproof.run.engine_names`, another one by `--serves` or, without
that, by its last verdict, which is the file of `--verdict` or lies where `judge` writes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof.findings.finding import Rule
from batchproof.models.embedded import EMBEDDED, KNOWN
from batchproof.places import VERDICTS
from batchproof.plugin.items import trial_of
from batchproof.plugin.selection import Selection
from batchproof.plugin.xfails import known_failure_of
from batchproof.records.verdict import VERDICT, EngineVerdict
from batchproof.run.engine_names import served_by
from batchproof.validation.values import near

SERVES = "--serves"
HELP = (
    "a model that the engine serves, repeatable, or all: to refuse it is a failure (default: those of "
    "its last verdict; built-in engines have a list of their own)"
)
DECLARED = pytest.StashKey[Mapping[str, Mapping[str, str]]]()  # engine -> model -> what declares it
SAYS_SO = pytest.StashKey[bool]()  # of the one test that fails if its engine refuses its model


def declare(config: pytest.Config, selection: Selection, verdict: Path | None) -> None:
    """Settles what each engine serves. `verdict` is the file that the run will replace. Raises
    `UsageError` for a name that is no model."""
    names = set(config.getoption(SERVES) or ())
    for name in names - {"all", *KNOWN, *selection.model_names}:
        if "/" not in name:  # else a checkpoint
            raise UsageError(f"{SERVES} {name!r} is no model; {near(name, KNOWN)}")
    asked = dict.fromkeys(names | set(EMBEDDED if "all" in names else ()), SERVES)
    config.stash[DECLARED] = {
        each.name: dict.fromkeys(served_by(each.name, selection.dtype), "the list of built-in engines")
        or asked
        or _by_last_verdict(each.name, selection, verdict)
        for each in selection.engines
    }


def _by_last_verdict(engine: str, selection: Selection, configured: Path | None) -> Mapping[str, str]:
    paths = (*VERDICTS.glob("*/verdict.json"), *([configured] if configured else []))
    found = [*_verdicts_on(engine, selection, paths)]
    last = max(found, key=lambda each: each.made.date, default=None)
    if last is None:
        return {}
    held = [name.partition("[")[2] for name, outcome in last.outcomes.items() if outcome == "held"]
    # What it refused against a declaration stays declared, or a second run would be green.
    failures = [each.failure for each in last.failures if each.failure]
    still = {e.facts["model"] for e in failures if e.rule == Rule.MODEL_REFUSED.id}
    served = [
        model
        for model in (*EMBEDDED, *selection.model_names)
        if model in still or any(each.startswith((f"{model}]", f"{model}-")) for each in held)
    ]
    return dict.fromkeys(served, f"its verdict of {last.made.date}")


def _verdicts_on(engine: str, selection: Selection, paths: Iterable[Path]) -> Iterator[EngineVerdict]:
    """Yields the verdicts on the engine, on the same device and in the same dtype."""
    for path in paths:
        try:  # a verdict is long, and most are on other engines
            is_likely = json.dumps(engine, ensure_ascii=False) in path.read_text(encoding="utf-8")
            verdict = VERDICT.read(path) if is_likely else None
        except (OSError, ValueError, UsageError):  # there is none yet, or one of another schema
            continue
        if verdict is not None and verdict.engine == engine:
            options = dict(each.partition("=")[::2] for each in verdict.conditions.options)
            device = verdict.conditions.device or options.get("--device", selection.device)
            if (device, options.get("--dtype", "float32")) == (selection.device, selection.dtype):
                yield verdict


def choose_tests(items: Sequence[pytest.Item]) -> None:
    """Chooses the test that fails if an engine refuses a model that it serves: the first whose failure
    is not expected, in all workers the same."""
    chosen: set[object] = set()
    for item in items:
        pair = trial_of(item)
        if pair and pair not in chosen and known_failure_of(item) is None:
            chosen.add(pair)
            item.stash[SAYS_SO] = True
