"""Checks one toy with one engine: served, refused, not buildable, unproven or WRONG.

Served means: over six unequal requests on fewer slots, packed with others' decodes, fed in chunks,
preempted, and next to aborted ones, in float32 and in bfloat16, every token and every logit equals
per-prompt generation within rounding (rules O2 to O4 of `batchproof.checks.answers`). Anything else an
engine does with a model it accepts is WRONG.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated

import torch
from pydantic import Field
from transformers import PreTrainedModel

from batchproof.api import Capability, Completion, Engine, EngineConfig, Request
from batchproof.checks.happened import has_chunk, has_mixed_step, has_preemption
from batchproof.errors import BatchproofError, EngineHang, UnsupportedModelError
from batchproof.findings.finding_text import headline
from batchproof.models.catalogue import ModelUnderTest, moved
from batchproof.oracle.oracle import Oracle, centred, teacher_forced
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.capabilities import offer_of
from batchproof.run.failures import ConformanceFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, reference_factory, resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload
from batchproof_lab.model_sweep.toys import Toy, quiet

ABORTED = "aborted"
PROMPT_LENS = (9, 4, 21, 4, 33, 14)  # two are equally long
CAPS = (7, 12, 3, 9, 5, 8)
WORKLOADS = {
    "packed": EngineConfig(max_num_seqs=4, block_size=4, return_logits=True),
    "chunked": EngineConfig(max_num_seqs=3, block_size=4, max_num_batched_tokens=8, return_logits=True),
    "preempted": EngineConfig(max_num_seqs=4, block_size=4, num_blocks=11, return_logits=True),
    ABORTED: EngineConfig(max_num_seqs=2, block_size=4, max_num_batched_tokens=8),
}
ARRIVALS = (0, 0, 0, 1, 1, 2)  # the step before which each request is added
ABORTS = (("r1", 3), ("r2", 2), ("r4", 4))  # one that decodes, one in its prompt, one that may wait
NEEDS = {
    "chunked": Capability.CHUNKED_PREFILL,
    "preempted": Capability.PREEMPTION,
    ABORTED: Capability.STEPPING,
}
SHOWN = {"packed": has_mixed_step, "chunked": has_chunk, "preempted": has_preemption}
LONGEST_REASON = 160


class ToyVerdict(StrEnum):
    """The outcome for one toy, as it stands in the results."""

    SERVED = "served"
    REFUSED = "refused"
    UNBUILDABLE = "not buildable"
    UNPROVEN = "unproven"
    WRONG = "WRONG"


@dataclass(frozen=True)
class ToyRecord:
    """One small model. `worst` is the largest difference of a logit from float64, in units of E, and
    `worst_bfloat16` the same in bfloat16, None where its rounding is too large to judge."""

    model_type: Annotated[str, Field(alias="type")]
    form: str  # empty: as by default
    verdict: str
    reason: str = ""
    layers: str = ""
    worst: float | None = None
    worst_bfloat16: float | None = None
    error_unit: float | None = None  # E, the reference's own worst logit error
    num_tokens: int | None = 0

    @property
    def name(self) -> str:
        """Returns the type, with its form if it is not the default."""
        return f"{self.model_type}, {self.form}" if self.form else self.model_type


@dataclass(frozen=True, slots=True)
class ToyTask:
    """One toy, one engine."""

    toy: Toy
    engine: str
    seed: int = 0
    time_limit_s: float = 60.0  # of one call of the engine

    @property
    def key(self) -> str:
        return str(self.toy)

    @property
    def record(self) -> Callable[..., ToyRecord]:
        """Returns what makes the record of this toy of a verdict, its reason and its figures."""
        return partial(ToyRecord, self.toy.model_type, self.toy.form)


@quiet()
def check_toy(task: ToyTask) -> ToyRecord:
    """Returns the verdict. Raises nothing: what the engine raises is part of it."""
    torch.set_num_threads(1)  # workers share the cores
    try:
        model = task.toy.build(task.seed)
        model(input_ids=torch.arange(4)[None], use_cache=False)
    except Exception as error:
        return task.record(ToyVerdict.UNBUILDABLE, _in_a_line(error))
    layers = _kinds_of_layers(model)
    try:
        return _served(task, model, layers)
    except UnsupportedModelError as error:
        return task.record(ToyVerdict.REFUSED, _in_a_line(error).partition(": ")[2], layers)
    except UnprovenError as why:
        return task.record(ToyVerdict.UNPROVEN, _in_a_line(why), layers)
    except ConformanceFailure as error:
        found = error.failure.finding
        return task.record(
            ToyVerdict.WRONG, f"{found.promise.id}: {_in_a_line(headline(found))}", layers
        )
    except (Exception, EngineHang) as error:
        return task.record(ToyVerdict.WRONG, f"{type(error).__name__}: {_in_a_line(error)}", layers)


def _served(task: ToyTask, model: PreTrainedModel, layers: str) -> ToyRecord:
    spec = resolve_engine(task.engine)
    # It serves the model, or refuses it.
    notes = "; ".join(getattr(spec.factory(model, EngineConfig()), "notes", ()))
    oracle = toy_oracle(str(task.toy), model, task.seed)
    worst, num_tokens = _worst(task, spec, oracle)
    worst_bfloat16 = None
    if (rounded := rounded_oracle(str(task.toy), model)) is not None:
        worst_bfloat16, _ = _worst(task, spec, rounded)
    unit = oracle.error.max_abs
    return task.record(ToyVerdict.SERVED, notes, layers, worst, worst_bfloat16, unit, num_tokens)


def _worst(task: ToyTask, spec: EngineSpec, oracle: Oracle) -> tuple[float, int]:
    """Returns the largest difference of a logit from float64 over all workloads, in units of E, and
    the number of tokens judged. Raises `ConformanceFailure`."""
    model = oracle.subject.model
    capabilities = offer_of(spec.name, lambda config: spec.factory(model, config)).capabilities
    lab = Laboratory(torch.device("cpu"), model.dtype, task.time_limit_s)
    trial = Trial(lab, spec, oracle, capabilities, Promise.P1)
    requests = _requests(oracle.subject.vocab_size, task.seed)
    possible = [what for what in WORKLOADS if what not in NEEDS or NEEDS[what] in capabilities]
    worst = max(_checked(trial, requests, what) for what in possible)
    return worst, trial.ledger.num_steps


def _checked(trial: Trial, requests: tuple[Request, ...], what: str) -> float:
    """Returns the largest difference of a logit from float64, in units of E. Raises
    `ConformanceFailure`."""
    workload = Workload(requests, WORKLOADS[what])
    if what == ABORTED:
        workload = replace(workload, arrivals=ARRIVALS, aborts=ABORTS)
        with trial.engine(workload.config) as engine:
            check_run_with_aborts(trial, workload, engine)
        return 0.0
    with trial.engine(workload.config) as engine:
        completions = trial.check(workload, engine).completions
        if Capability.TRACING in trial.capabilities and not _shows(trial, engine, what):
            raise BatchproofError(f"the trace shows nothing {what}")
    pairs = zip(requests, completions, strict=True)
    return max((_off(trial.oracle, *each) for each in pairs if each[1].logits is not None), default=0.0)


def _off(oracle: Oracle, request: Request, completion: Completion) -> float:
    """Returns the largest difference of a logit from float64, in units of E on that very answer."""
    assert completion.logits is not None, "the caller looks"
    prompt, token_ids = request.prompt_token_ids, tuple(completion.token_ids)
    exact = oracle.score(prompt, token_ids)
    difference = (centred(completion.logits) - centred(exact)).abs().max().item()
    *_, error = oracle.errors(prompt, token_ids)
    return difference / error.max_abs


def _shows(trial: Trial, engine: Engine, what: str) -> bool:
    """Returns whether the trace shows what the workload is for. An engine that serves waves feeds no
    prompt in the same step as another's decode.
    """
    trace = trial.trace_of(engine)
    if what == "packed" and Capability.SCHEDULING not in trial.capabilities:
        return any(len(record.rows) > 1 for record in trace)
    return SHOWN[what](trace)


def _requests(vocab_size: int, seed: int) -> tuple[Request, ...]:
    rng = random.Random(seed)
    return tuple(
        Request(f"r{index}", tuple(rng.choices(range(vocab_size), k=length)), cap)
        for index, (length, cap) in enumerate(zip(PROMPT_LENS, CAPS, strict=True))
    )


def _kinds_of_layers(model: PreTrainedModel) -> str:
    """Returns each kind of layer once; empty if the configuration does not say."""
    config = model.config.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or ())
    if not kinds and not getattr(model, "_is_stateful", False):
        kinds = ["sliding" if getattr(config, "sliding_window", None) else "full"]
    if any("experts" in name for name, _ in model.named_parameters()):
        kinds.append("experts")
    return ", ".join(dict.fromkeys(each.removesuffix("_attention") for each in kinds))


def _in_a_line(error: object) -> str:
    """Returns one line of an error: the last, where reports of nested errors say what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    text = lines[0].partition(". ")[0] if isinstance(error, ImportError) else lines[-1]
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


CONTEXT_LEN = 7  # tokens that must move the last logits: two layers with a window of 5 reach 9
FIRST_ORDINARY_TOKEN = 4  # after padding, beginning, end
MOST_ROUNDING = 1e-3  # of the spread of the logits: a larger E is not rounding
SMALLER_IN_BFLOAT16 = 0.5
MOST_ROUNDING_IN_BFLOAT16 = 0.05  # with a larger E a wrong mask could hide


class UnprovenError(Exception):
    """The engine may be right with this model, but that cannot be shown."""


class _ToyUnderTest(ModelUnderTest):
    @cached_property
    def exact(self) -> PreTrainedModel:
        """torch's grouped matrix product, which mixtures of experts use, has no float64."""
        model = super().exact
        model.set_experts_implementation("eager")
        return model


def toy_oracle(name: str, model: PreTrainedModel, seed: int) -> Oracle:
    """Returns the oracle of a toy. Raises `UnprovenError` if per-prompt generation contradicts one
    float64 pass, or if the logits do not depend on the whole context."""
    try:
        oracle = Oracle(_ToyUnderTest(name, model), reference_factory())
        error_unit = oracle.error.max_abs
    except UnsupportedModelError as error:
        raise UnprovenError(f"there is no reference: {error}") from error
    except Exception as error:
        raise UnprovenError(f"the reference fails: {error}") from error
    spread = _spread(model)
    if not error_unit <= MOST_ROUNDING * spread:
        raise UnprovenError(
            f"per-prompt generation is {error_unit:.2g} off one float64 pass; the logits spread "
            f"over {spread:.2g}"
        )
    _require_adequacy(oracle, seed)
    return oracle


def rounded_oracle(name: str, model: PreTrainedModel) -> Oracle | None:
    """Returns the oracle of the toy in bfloat16, with smaller weights, which amplify less; None if
    rounding leaves nothing to be judged by, or the model does not run in it."""
    rounded = moved(copy.deepcopy(model), "cpu", torch.bfloat16)
    for weight in rounded.parameters():
        if weight.dim() > 1:
            weight.data.mul_(SMALLER_IN_BFLOAT16)
    oracle = Oracle(_ToyUnderTest(name, rounded), reference_factory())
    try:
        error_unit = oracle.error.max_abs
    except Exception:
        return None
    return oracle if error_unit <= MOST_ROUNDING_IN_BFLOAT16 * _spread(rounded) else None


def _spread(model: PreTrainedModel) -> float:
    with torch.inference_mode():
        logits = model(input_ids=torch.arange(CONTEXT_LEN)[None], use_cache=False).logits
    return float(logits.max() - logits.min())


def _require_adequacy(oracle: Oracle, seed: int) -> None:
    """Raises `UnprovenError` unless each token of a short context, and the order of two, moves the
    last logits beyond the bound.

    The two are as near as a window reaches: a layer without positions knows only the causal order,
    and the layer above must distinguish them.
    """
    tokens = range(FIRST_ORDINARY_TOKEN, oracle.subject.vocab_size)
    drawn = random.Random(seed).sample(tokens, 2 * CONTEXT_LEN)
    prompt, others = drawn[:CONTEXT_LEN], drawn[CONTEXT_LEN:]
    changed = {"the order of tokens 3 and 4": [*prompt[:3], prompt[4], prompt[3], *prompt[5:]]}
    for place, other in enumerate(others):
        changed[f"token {place}"] = [*prompt[:place], other, *prompt[place + 1 :]]
    right, *scores = teacher_forced(
        oracle.subject, [(tuple(each), (0,)) for each in (prompt, *changed.values())]
    )
    bound = oracle.logit_bound
    for what, score in zip(changed, scores, strict=True):
        if not float((centred(score) - centred(right)).abs().max()) > bound:
            raise UnprovenError(f"{what} of {CONTEXT_LEN} does not move the last logits")
