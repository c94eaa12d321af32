"""The grades that an engine declares: read and validated."""

from __future__ import annotations

from collections.abc import Mapping

from batchproof.api import EngineConfig
from batchproof.errors import UsageError
from batchproof.run.invariance.axes import AXES, Axis
from batchproof.run.invariance.grades import Grade
from batchproof.run.trial import Trial


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
