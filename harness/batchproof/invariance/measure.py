"""Measures an engine on a model: settings are served on fresh engines, the negative control first, then
axis by axis. Without the control a grade proves nothing: an engine that answers every prompt alike, or
a comparison that sees nothing, would be invariant."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from textwrap import shorten

import torch
from torch import Tensor

from batchproof.api import Capability, Completion, EngineConfig, StepRecord, TokenEvent
from batchproof.checks.answers import order_findings, structure_findings
from batchproof.checks.broken import broken, require
from batchproof.decoding.sampling import highest
from batchproof.errors import ConfigError, EngineHang, OracleError, UnsupportedModelError, UsageError
from batchproof.findings.finding import Rule, found
from batchproof.findings.finding_text import headline
from batchproof.invariance.axes import (
    AXES,
    ENDS,
    LASTING,
    LENGTHS,
    Axis,
    Comparison,
    Contents,
    Setting,
    one_call,
)
from batchproof.invariance.grades import Answer, Grade, Graded, graded
from batchproof.invariance.shown import KEPT
from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, Evidence
from batchproof.records.texts import without_machine_paths
from batchproof.requirements.promises import Promise
from batchproof.run.devices import num_threads
from batchproof.run.engine_names import has_own_process
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.interrupting import NEEDED
from batchproof.run.laboratory import Laboratory, first_contact
from batchproof.run.registry import EngineSpec
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

LEAST_COMPARISONS = 4
LONGEST_REASON = 200  # characters; an error of TorchScript has thousands
NO_LOGITS = "it returns no logits, and near-ties may change the tokens of this model"
SEED = 0
NUM_COMPARISONS = 2  # along each axis; the longest prompt and the largest batch come first


class NotMeasuredError(Exception):
    """Raised if an axis can have no grade; the message says why."""


@dataclass(frozen=True)
class Served:
    """The answer to the kept request, the last completion it comes from, and the engine's records;
    None without the capability."""

    answer: Answer
    completion: Completion
    trace: tuple[StepRecord, ...] | None


def serve_setting(trial: Trial, setting: Setting) -> Served:
    """Serves the calls on one fresh engine. Raises `ConformanceFailure` and `HangFailure` as
    `Trial.run` does, and if a request is refused or answered in part only."""
    kept: list[Completion] = []
    with (
        num_threads(setting.num_threads),
        trial.reporting(setting.calls[0], Rule.RAISED),
        trial.engine(setting.calls[0].config) as engine,
    ):
        for asked in setting.calls:
            call = possible(asked, trial.capabilities)
            outcome = trial.run(call, engine)
            completions = outcome.completions
            require_in_the_middle(call, outcome.events)
            with trial.reporting(call):
                require(order_findings(call.requests, completions))
                for request, completion in zip(call.requests, completions, strict=True):
                    require(structure_findings(request, completion))
                    if request.request_id.startswith(KEPT):
                        _require_rows(completion)
                        kept.append(completion)
        has_trace = Capability.TRACING in trial.capabilities
        trace = tuple(trial.trace_of(engine)) if has_trace else None
    token_ids = tuple(token for each in kept for token in each.token_ids)
    rows = [each for each in map(_logits, kept) if each is not None]
    logits = torch.cat(rows).detach().cpu() if rows and trial.has_logits else None
    return Served(Answer(setting.kept.prompt_token_ids, token_ids, logits), kept[-1], trace)


def possible(call: Workload, capabilities: AbstractSet[Capability]) -> Workload:
    """Returns the call with those of its interruptions that the engine can do."""
    able = (each for each in call.interruptions if NEEDED[each.kind] in capabilities)
    return replace(call, interruptions=tuple(able))


def require_in_the_middle(call: Workload, events: Sequence[tuple[int, TokenEvent]]) -> None:
    """Raises `NotMeasuredError` unless the kept request got tokens before the first interruption of a
    call, and behind the last."""
    told = [step for step, event in events if event.request_id.startswith(KEPT)]
    done = [each.step for each in call.interruptions]
    if done and not (min(told) < done[0] and max(told) >= done[-1]):
        raise NotMeasuredError(f"it answers within steps {min(told)} to {max(told)}, not across {done}")


def _logits(completion: Completion) -> Tensor | None:
    """Returns the logits of an answer or, of one that comes step by step, the logprobs of all tokens,
    float64: they differ by what `centred` takes away."""
    if completion.logprobs is None or completion.logits is not None:
        return completion.logits
    rows = [[logprob for _, logprob in sorted(each.top)] for each in completion.logprobs]
    return torch.tensor(rows, dtype=torch.float64)


def _require_rows(completion: Completion) -> None:
    if completion.logits is not None and len(completion.logits) != len(completion.token_ids):
        got, should_be = tuple(completion.logits.shape), (len(completion.token_ids), "vocab_size")
        name = completion.request_id
        raise broken(Rule.LOGITS_SHAPE, name, got=str(got), should_be=str(should_be))


def failed_control(trial: Trial, contents: Contents) -> str:
    """Returns which control failed, and how; empty if all is well. Raises what serving raises."""
    kept, others = contents.kept(LENGTHS[-1]), contents.neighbours(2)
    altered = contents.with_last_token_changed(kept)
    answer, other = (serve_setting(trial, one_call([each, *others])).answer for each in (kept, altered))
    grade = graded(trial.oracle, answer, other, lambda: other).grade
    if grade is not Grade.NONE:
        return f"another last token of the prompt gets grade {grade.letter}, but should get -"
    if answer.logits is None:
        return ""
    noisy, noisier = (with_noise(answer, seed) for seed in (1, 2))
    for keeps_shapes in (False, True):
        grade = graded(trial.oracle, answer, noisy, lambda: noisier, keeps_shapes).grade
        if grade is not Grade.WITHIN_E:
            return f"an ulp of noise on the logits gets grade {grade.letter}, but should get E"
    return ""


def with_noise(answer: Answer, seed: int) -> Answer:
    """Returns the answer with about half of its logits moved up by one ulp of float32."""
    assert answer.logits is not None, "without logits there is nothing to move"
    chosen = torch.rand(answer.logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    up = torch.nextafter(answer.logits, torch.tensor(float("inf")))
    return replace(answer, logits=torch.where(chosen, up, answer.logits))


@dataclass(frozen=True)
class Outcome:
    """A graded comparison; `is_shown`: whether traces show what the axis is about, None without."""

    graded: Graded
    is_shown: bool | None
    base: Served
    changed: Served


def measure_engine(
    lab: Laboratory, spec: EngineSpec, model: str, axes: Sequence[Axis], seed: int
) -> EngineRecord:
    """Returns the grades of the engine on the model. Raises `UsageError` for a model whose context is
    too short, and what `first_contact` blames on the input: `UsageError` or `ConfigError`."""
    oracle = lab.oracle(model)
    control_contents = Contents(oracle.subject, seed)
    dtype = oracle.subject.dtype_name
    try:
        with contained():
            first_contact(lab, spec, oracle.subject)
            trial = Trial(lab, spec, oracle, Promise.P20)
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
        num_tokens=sum(len(each.changed.answer.token_ids) for each in outcomes),
    )


def require_measurable(trial: Trial, axis: Axis) -> None:
    if axis.needs is not None and axis.needs not in trial.capabilities:
        raise NotMeasuredError(f"the engine has no {axis.needs}")
    if lack := axis.lack(trial.subject):
        raise NotMeasuredError(lack)
    if axis.needs is Capability.INTERRUPTION and not _has_all_logprobs(trial):
        raise NotMeasuredError("the engine has no logprobs of all tokens")
    kinds, ends = trial.grammars
    if axis.needs is Capability.STRUCTURED and not (LASTING.kind in kinds and (ends or ENDS) >= ENDS):
        raise NotMeasuredError(f"the engine takes no {LASTING.kind} that ends with {set(ENDS)}")
    if axis.is_in_process and has_own_process(trial.spec.name):
        raise NotMeasuredError("the engine computes in a process of its own")
    if not trial.has_logits and trial.subject.oracle is None:
        raise NotMeasuredError(NO_LOGITS)


def _has_all_logprobs(trial: Trial) -> bool:
    fields = trial.fields
    return "logprobs" in fields and highest(fields, "logprobs") >= trial.subject.vocab_size


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
    base_setting, varied = comparison
    base = serve_setting(trial, base_setting)
    setting = varied(base.answer.token_ids) if callable(varied) else varied
    changed = serve_setting(trial, setting)
    found = graded(
        trial.oracle.under(setting.calls[-1].adapters).of(setting.kept),
        base.answer,
        changed.answer,
        lambda: serve_setting(trial, contents.rewritten(setting)).answer,
        axis.keeps_shapes,
    )
    is_shown = None
    if axis.shown is not None and base.trace is not None and changed.trace is not None:
        is_shown = axis.shown(base.trace, changed.trace)
    return Outcome(found, is_shown, base, changed)


def _evidence(axis: Axis, outcomes: Sequence[Outcome]) -> Evidence:
    """Returns what proves that the engine did what the axis is about, in every comparison. Raises
    `NotMeasuredError` if its traces show that it did not."""
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
    text = str(error)
    if isinstance(error, ConformanceFailure | HangFailure):
        text = headline(error.failure.finding)
    elif isinstance(error, EngineHang):
        text = f"time limit: {text}"
    elif not isinstance(error, NotMeasuredError | OracleError):
        text = f"it raised {type(error).__name__}: {text}"
    return shorten(without_machine_paths(text), LONGEST_REASON)


def require_control(trial: Trial) -> None:
    """Raises `ConformanceFailure` if what must differ does not: see `failed_control`."""
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
    cannot be measured, and as `Trial.run` does."""
    if declared is Grade.TOKENS and trial.subject.oracle is None:
        return
    if lack := axis.lack(trial.subject):
        trial.ledger.note(f"{axis.name} is not asked on {trial.subject.name}: {lack}")
        return
    try:
        require_measurable(trial, axis)
        outcomes = [*islice(compared(trial, axis, SEED), NUM_COMPARISONS)]
    except NotMeasuredError as error:
        raise UsageError(f"{trial!r} declares {declared.letter} along {axis.name}: {error}") from None
    for outcome in outcomes:
        if outcome.is_shown is not None:
            trial.must_show(axis.what, outcome.is_shown)
        if outcome.graded.grade < declared:
            raise _fallen(trial, axis, declared, outcome)
        trial.ledger.num_workloads += 1
        trial.ledger.num_requests += 1
        trial.ledger.num_steps += len(outcome.changed.answer.token_ids)


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
    """Returns the least grade along each axis of `InvariantEngine.invariance`. Raises `UsageError`
    unless it is a mapping that names an axis at least, known axes, grades that these can have, and
    nothing that the engine lacks."""
    name = trial.spec.name
    with trial.engine(EngineConfig()) as engine:
        declared: object = engine.invariance  # type: ignore[attr-defined]
    if not isinstance(declared, Mapping) or not declared:
        raise UsageError(
            f"engine {name!r}: invariance is {declared!r}, but must be a mapping of axes to grades, as "
            f"{{'batch': 'B'}}; an engine that declares nothing does without it"
        )
    found = {}
    for axis_name, letter in declared.items():
        if axis_name not in AXES:
            known = ", ".join(AXES)
            raise UsageError(
                f"engine {name!r}: invariance has the axis {axis_name!r}, which is none of {known}"
            )
        axis = AXES[axis_name]
        best = axis.best if trial.has_logits else Grade.TOKENS
        possible = {each.letter: each for each in reversed(Grade) if Grade.NONE < each <= best}
        if letter not in possible:
            raise UsageError(
                f"engine {name!r}: invariance is {letter!r} along {axis.name}, but must be one of "
                f"{', '.join(possible)}" + ("" if trial.has_logits else ", for want of logits")
            )
        if axis.needs is not None and axis.needs not in trial.capabilities:
            raise UsageError(
                f"engine {name!r} declares invariance along {axis.name}, which needs {axis.needs}"
            )
        found[axis] = possible[letter]
    return found
