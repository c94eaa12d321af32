"""Measures an engine on a model: the negative control first, then axis by axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten

from batchproof.errors import ConfigError, EngineHang, OracleError, UnsupportedModelError, UsageError
from batchproof.findings.finding_text import headline
from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, Evidence
from batchproof.records.machine_paths import without_machine_paths
from batchproof.requirements.promises import Promise
from batchproof.run.engine_names import has_own_process
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.invariance.axes import Axis
from batchproof.run.invariance.control import failed_control
from batchproof.run.invariance.grades import Graded, graded
from batchproof.run.invariance.serving import Served, serve_setting
from batchproof.run.invariance.settings import Comparison, Contents
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial

LEAST_COMPARISONS = 4
LONGEST_REASON = 200  # characters; an error of TorchScript has thousands
NO_LOGITS = "it returns no logits, and near-ties may change the tokens of this model"


class NotMeasuredError(Exception):
    """Raised if an axis can have no grade; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """A graded comparison; `is_shown` tells whether the traces show what the axis is about, None
    without traces."""

    graded: Graded
    is_shown: bool | None
    base: Served
    changed: Served


def measure_engine(
    lab: Laboratory, spec: EngineSpec, model: str, axes: Sequence[Axis], seed: int
) -> EngineRecord:
    """Returns the grades of the engine on the model.

    Raises `UsageError` for a model whose context is too short, and what `capabilities_of` blames on
    the input: `UsageError` or `ConfigError`.
    """
    oracle = lab.oracle(model)
    control_contents = Contents(oracle.subject, seed)
    dtype = oracle.subject.dtype_name
    try:
        with contained():
            trial = Trial(lab, spec, oracle, lab.capabilities(spec, oracle.subject), Promise.P20)
            failed = failed_control(trial, control_contents)
            kappa, unit = oracle.kappa, oracle.error.max_abs
    except (UsageError, ConfigError):
        raise
    except UnsupportedModelError as error:
        why = without_machine_paths(f"refuses the model: {error}")
        return EngineRecord(spec.name, model, dtype, refusal=why)
    except (Exception, EngineHang) as error:
        return EngineRecord(spec.name, model, dtype, refusal=_reason(error))
    if failed:
        failed = f"the negative control failed: {failed}"
        return EngineRecord(spec.name, model, dtype, kappa, unit, refusal=failed)
    records = tuple(measure_axis(trial, axis, seed) for axis in axes)
    return EngineRecord(spec.name, model, dtype, kappa, unit, axes=records)


def measure_axis(trial: Trial, axis: Axis, seed: int) -> AxisRecord:
    """Returns the grade along the axis, or why there is none."""
    try:
        require_measurable(trial, axis)
        with contained():
            outcomes = list(compared(trial, axis, seed))
        evidence = _evidence(axis, outcomes)
    except (NotMeasuredError, OracleError) as error:
        return AxisRecord(axis.name, UNMEASURED, _reason(error))
    except (Exception, EngineHang) as error:
        return AxisRecord(axis.name, UNMEASURED, _reason(error), has_failed=True)
    found = [each.graded for each in outcomes]
    worst = max((each.worst for each in found if each.worst is not None), default=None)
    return AxisRecord(
        axis.name,
        min(each.grade for each in found).letter,
        evidence=evidence,
        worst=worst,
        num_comparisons=len(found),
        num_tokens=sum(each.num_tokens for each in found),
    )


def require_measurable(trial: Trial, axis: Axis) -> None:
    """Raises `NotMeasuredError` if the engine lacks what the axis needs."""
    if axis.needs is not None and axis.needs not in trial.capabilities:
        raise NotMeasuredError(f"the engine has no {axis.needs}")
    if axis.is_in_process and has_own_process(trial.spec.name):
        raise NotMeasuredError("the engine computes in a process of its own")
    if not trial.has_logits and trial.subject.oracle is None:
        raise NotMeasuredError(NO_LOGITS)


def compared(trial: Trial, axis: Axis, seed: int) -> Iterator[Outcome]:
    """Yields at least `LEAST_COMPARISONS` outcomes, and all as long as no bit has moved: in few
    comparisons equal bits may be luck, above all in 16 bits."""
    contents = Contents(trial.subject, seed)
    has_moved = False
    for number, comparison in enumerate(axis.comparisons(contents), start=1):
        outcome = _compared(trial, axis, comparison, contents)
        yield outcome
        has_moved |= outcome.graded.has_moved
        if has_moved and number >= LEAST_COMPARISONS:
            return


def _compared(trial: Trial, axis: Axis, comparison: Comparison, contents: Contents) -> Outcome:
    base = serve_setting(trial, comparison.base, comparison.prompt)
    setting = comparison.changed(base.answer.token_ids)
    changed = serve_setting(trial, setting, comparison.prompt)
    found = graded(
        trial.oracle,
        base.answer,
        changed.answer,
        lambda: serve_setting(trial, contents.rewritten(setting), comparison.prompt).answer,
        axis.keeps_shapes,
    )
    return Outcome(found, _is_shown(axis, base, changed), base, changed)


def _is_shown(axis: Axis, base: Served, changed: Served) -> bool | None:
    if axis.shown is None or base.trace is None or changed.trace is None:
        return None
    return axis.shown(base.trace, changed.trace)


def _evidence(axis: Axis, outcomes: Sequence[Outcome]) -> Evidence:
    """Returns what proves that the engine did what the axis is about, in every comparison.

    Raises `NotMeasuredError` if its traces show that it did not.
    """
    if axis.shown is None:
        return "by construction"
    if any(each.is_shown is None for each in outcomes):
        return "not shown"
    num_shown = sum(bool(each.is_shown) for each in outcomes)
    if num_shown < len(outcomes):
        raise NotMeasuredError(
            f"its traces show it in {num_shown} of {len(outcomes)} comparisons: {axis.what}"
        )
    return "shown"


def _reason(error: BaseException) -> str:
    """Returns an exception as a reason, on one line."""
    text = str(error)
    if isinstance(error, ConformanceFailure | HangFailure):
        text = headline(error.failure.finding)
    elif not isinstance(error, NotMeasuredError | OracleError | EngineHang):
        text = f"it raised {type(error).__name__}: {text}"
    if isinstance(error, EngineHang):
        text = f"time limit: {text}"
    return shorten(without_machine_paths(text), LONGEST_REASON)
