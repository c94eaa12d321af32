"""Holds an engine to the grades that it declares (P20)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from batchproof.api import EngineConfig
from batchproof.errors import UsageError
from batchproof.findings.finding import Rule, found
from batchproof.invariance.axes import AXES, Axis
from batchproof.invariance.grades import Grade
from batchproof.invariance.measure import (
    NotMeasuredError,
    Outcome,
    compared,
    failed_control,
    require_measurable,
)
from batchproof.invariance.settings import Contents
from batchproof.run.devices import num_threads
from batchproof.run.failures import ConformanceFailure
from batchproof.run.trial import Trial

SEED = 0
NUM_COMPARISONS = 2  # along each axis; the longest prompt and the largest batch come first


def require_control(trial: Trial) -> None:
    """Raises `ConformanceFailure` if what must differ does not: see `control`."""
    with num_threads(1):
        failed = failed_control(trial, Contents(trial.subject, SEED))
    if failed:
        what = f"the negative control failed: {failed}"
        finding = found(Rule.STATED, promise=trial.promise, what=what)
        raise ConformanceFailure(trial.failure(finding))
    trial.ledger.num_workloads += 1
    trial.ledger.num_requests += 1


def require_grade(trial: Trial, axis: Axis, declared: Grade) -> None:
    """Compares along the axis, a few times. Equal tokens, T, are required of a constructed model only.

    Raises `ConformanceFailure` at the first grade below the declared one, `UsageError` if the axis
    cannot be measured, and as `Trial.run` does.
    """
    if declared is Grade.TOKENS and trial.subject.oracle is None:
        return
    try:
        require_measurable(trial, axis)
    except NotMeasuredError as error:
        raise UsageError(f"{trial!r} declares {declared.letter} along {axis.name}: {error}") from None
    for outcome in islice(compared(trial, axis, SEED), NUM_COMPARISONS):
        if outcome.is_shown is not None:
            trial.must_show(axis.what, outcome.is_shown)
        if outcome.graded.grade < declared:
            raise _fallen(trial, axis, declared, outcome)
        trial.ledger.num_workloads += 1
        trial.ledger.num_requests += 1
        trial.ledger.num_steps += outcome.graded.num_tokens


def _fallen(trial: Trial, axis: Axis, declared: Grade, outcome: Outcome) -> ConformanceFailure:
    base, changed = outcome.base, outcome.changed
    pairs = zip(base.answer.token_ids, changed.answer.token_ids, strict=False)
    same = [before == after for before, after in pairs]
    worst = outcome.graded.worst
    finding = found(
        Rule.INVARIANCE,
        changed.completion.request_id,
        axis=axis.name,
        what=axis.what,
        declared=declared.letter,
        got=outcome.graded.grade.letter,
        worst="an unknown number of" if worst is None else f"{worst:.2g}",
        num_tokens=same.index(False) if False in same else len(same),
        before=base.answer.token_ids,
        after=changed.answer.token_ids,
    )
    scene = trial.history.scene_of_answers(changed.completion, base.completion)
    return ConformanceFailure(trial.failure(finding, scene=scene))


def declared_grades(trial: Trial) -> Mapping[Axis, Grade]:
    """Returns the least grade along each axis of `InvariantEngine.invariance`.

    Raises `UsageError` unless it is a mapping that names an axis at least, known axes, grades that
    these can have, and nothing that the engine lacks.
    """
    name = trial.spec.name
    with trial.engine(EngineConfig()) as engine:
        declared: object = engine.invariance  # type: ignore[attr-defined]
    if not isinstance(declared, Mapping) or not declared:
        raise UsageError(
            f"engine {name!r}: invariance is {declared!r}, but must be a mapping of axes to grades, as "
            f"{{'batch': 'B'}}; an engine that declares nothing does without it"
        )
    axes = [_axis(name, each) for each in declared]
    return {axis: _grade(trial, axis, declared[axis.name]) for axis in axes}


def _axis(name: str, axis: object) -> Axis:
    if axis not in AXES:
        raise UsageError(
            f"engine {name!r}: invariance has the axis {axis!r}, which is none of {', '.join(AXES)}"
        )
    return AXES[str(axis)]


def _grade(trial: Trial, axis: Axis, letter: object) -> Grade:
    name, best = trial.spec.name, axis.best if trial.has_logits else Grade.TOKENS
    possible = [each.letter for each in Grade if Grade.NONE < each <= best]
    if letter not in possible:
        raise UsageError(
            f"engine {name!r}: invariance is {letter!r} along {axis.name}, but must be one of "
            f"{', '.join(reversed(possible))}" + ("" if trial.has_logits else ", for want of logits")
        )
    if axis.needs is not None and axis.needs not in trial.capabilities:
        raise UsageError(
            f"engine {name!r} declares invariance along {axis.name}, which needs {axis.needs}"
        )
    return Grade.of(str(letter))
