"""Measures an engine on a model: the negative control first, then axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from batchproof.api import Capability
from batchproof.campaign.invariance.axes import Axis
from batchproof.campaign.invariance.control import failed_control
from batchproof.campaign.invariance.grades import Graded, graded
from batchproof.campaign.invariance.serving import Measured, Served
from batchproof.campaign.invariance.settings import Comparison, Contents
from batchproof.errors import ConfigError, EngineHang, OracleError, UnsupportedModelError, UsageError
from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, Evidence
from batchproof.records.machine_paths import without_machine_paths
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, has_own_process
from batchproof.run.time_limit import contained

LEAST_COMPARISONS = 4
LONGEST_REASON = 200  # characters; an error of TorchScript has thousands
NO_LOGITS = "it returns no logits, and near-ties may change the tokens of this model"


class NotMeasuredError(Exception):
    """Raised if an axis has no grade; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """A graded comparison, and whether the traces show what the axis is about; None without traces."""

    graded: Graded
    is_shown: bool | None


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
            measured = Measured(lab, spec, oracle, lab.capabilities(spec, oracle.subject))
            failed = failed_control(measured, control_contents)
            kappa, unit = oracle.kappa, oracle.error.max_abs
    except (UsageError, ConfigError):
        raise
    except UnsupportedModelError as error:
        return EngineRecord(spec.name, model, dtype, refusal=f"refuses the model: {error}")
    except (Exception, EngineHang) as error:
        return EngineRecord(spec.name, model, dtype, refusal=_reason(error))
    if failed:
        failed = f"the negative control failed: {failed}"
        return EngineRecord(spec.name, model, dtype, kappa, unit, refusal=failed)
    records = tuple(measure_axis(measured, axis, seed) for axis in axes)
    return EngineRecord(spec.name, model, dtype, kappa, unit, axes=records)


def measure_axis(measured: Measured, axis: Axis, seed: int) -> AxisRecord:
    """Returns the grade along the axis, or why there is none."""
    try:
        _require_measurable(measured, axis)
        with contained():
            outcomes = _outcomes(measured, axis, Contents(measured.oracle.subject, seed))
        evidence = _evidence(axis, outcomes)
    except (Exception, EngineHang) as error:
        return AxisRecord(axis.name, UNMEASURED, _reason(error))
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


def _require_measurable(measured: Measured, axis: Axis) -> None:
    """Raises `NotMeasuredError` if the engine lacks what the axis needs."""
    if axis.needs is not None and axis.needs not in measured.capabilities:
        raise NotMeasuredError(f"the engine has no {axis.needs}")
    if axis.is_in_process and has_own_process(measured.spec.name):
        raise NotMeasuredError("the engine computes in a process of its own")
    if Capability.LOGITS not in measured.capabilities and measured.oracle.subject.oracle is None:
        raise NotMeasuredError(NO_LOGITS)


def _outcomes(measured: Measured, axis: Axis, contents: Contents) -> list[Outcome]:
    """Compares at least `LEAST_COMPARISONS` times, and all times as long as no bit has moved: in few
    comparisons equal bits may be luck, above all in 16 bits."""
    outcomes: list[Outcome] = []
    for comparison in axis.comparisons(contents):
        outcomes.append(_compared(measured, axis, comparison, contents))
        has_moved = any(each.graded.has_moved for each in outcomes)
        if has_moved and len(outcomes) >= LEAST_COMPARISONS:
            break
    return outcomes


def _compared(measured: Measured, axis: Axis, comparison: Comparison, contents: Contents) -> Outcome:
    base = measured.serve(comparison.base, comparison.prompt)
    setting = comparison.changed(base.answer.token_ids)
    changed = measured.serve(setting, comparison.prompt)
    found = graded(
        measured.oracle,
        base.answer,
        changed.answer,
        lambda: measured.serve(contents.rewritten(setting), comparison.prompt).answer,
        axis.keeps_shapes,
    )
    return Outcome(found, _is_shown(axis, base, changed))


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
    text = shorten(without_machine_paths(str(error)), LONGEST_REASON)
    is_ours = isinstance(error, NotMeasuredError | OracleError)
    return text if is_ours else f"it raised {type(error).__name__}: {text}"
