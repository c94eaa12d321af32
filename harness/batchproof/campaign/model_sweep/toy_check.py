"""Checks one toy with one engine: served, refused, not buildable, unproven or WRONG.

Served means: over six unequal requests on fewer slots, packed with others' decodes, fed in chunks, and
preempted, every token and every logit equals per-prompt generation within rounding (rules O2 to O4 of
`batchproof.checks.answers`). Anything else an engine does with a model it accepts is WRONG.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from transformers import PreTrainedModel

from batchproof.api import Capability, Engine, EngineConfig, Request
from batchproof.campaign.model_sweep.toy_oracle import UnprovenError, toy_oracle
from batchproof.campaign.model_sweep.toys import Toy, quiet
from batchproof.checks.happened import has_chunk, has_mixed_step, has_preemption
from batchproof.errors import BatchproofError, EngineHang, UnsupportedModelError
from batchproof.findings.finding_text import headline
from batchproof.oracle.oracle import centred
from batchproof.promises import Promise
from batchproof.run.capabilities import capabilities_of
from batchproof.run.failures import ConformanceFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

PROMPT_LENS = (9, 1, 21, 4, 33, 14)
CAPS = (7, 12, 3, 9, 5, 8)
WORKLOADS = {
    "packed": EngineConfig(max_num_seqs=4, block_size=4, return_logits=True),
    "chunked": EngineConfig(max_num_seqs=3, block_size=4, max_num_batched_tokens=8, return_logits=True),
    "preempted": EngineConfig(max_num_seqs=4, block_size=4, num_blocks=11, return_logits=True),
}
NEEDS = {"chunked": Capability.CHUNKED_PREFILL, "preempted": Capability.PREEMPTION}
SHOWN = {"packed": has_mixed_step, "chunked": has_chunk, "preempted": has_preemption}
LONGEST_REASON = 160


class ToyVerdict(StrEnum):
    """The outcome for one toy, as it stands in the results."""

    SERVED = "served"
    REFUSED = "refused"
    UNBUILDABLE = "not buildable"
    UNPROVEN = "unproven"
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class ToyResult:
    """A verdict with its reason. `worst`: the largest difference of a logit from float64, in units of
    E."""

    verdict: ToyVerdict
    reason: str = ""
    layers: str = ""
    worst: float | None = None
    error_unit: float | None = None  # E
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToyTask:
    """One toy, one engine; `time_limit_s` is for one call of the engine."""

    toy: Toy
    engine: str
    seed: int = 0
    time_limit_s: float = 60.0  # of one call of the engine


def check_toy(task: ToyTask) -> ToyResult:
    """Returns the verdict. Raises nothing: what the engine raises is part of it."""
    with quiet():
        return _judge(task)


def _judge(task: ToyTask) -> ToyResult:
    try:
        model = task.toy.build(task.seed)
        model(input_ids=torch.arange(4)[None], use_cache=False)
    except Exception as error:
        return ToyResult(ToyVerdict.UNBUILDABLE, _in_a_line(error))
    layers = _kinds_of_layers(model)
    try:
        return _served(task, model, layers)
    except UnsupportedModelError as error:
        return ToyResult(ToyVerdict.REFUSED, _in_a_line(error).partition(": ")[2], layers)
    except UnprovenError as why:
        return ToyResult(ToyVerdict.UNPROVEN, _in_a_line(why), layers)
    except ConformanceFailure as error:
        found = error.failure.finding
        return ToyResult(ToyVerdict.WRONG, f"{found.promise.id}: {_in_a_line(headline(found))}", layers)
    except (Exception, EngineHang) as error:
        return ToyResult(ToyVerdict.WRONG, f"{type(error).__name__}: {_in_a_line(error)}", layers)


def _served(task: ToyTask, model: PreTrainedModel, layers: str) -> ToyResult:
    spec = resolve_engine(task.engine)
    capabilities = capabilities_of(spec.name, lambda config: spec.factory(model, config))
    oracle = toy_oracle(str(task.toy), model, task.seed)
    lab = Laboratory(torch.device("cpu"), torch.float32, task.time_limit_s)
    trial = Trial(lab, spec, oracle, capabilities, Promise.P1)
    requests = _requests(oracle.subject.vocab_size, task.seed)
    worst = max(_checked(trial, requests, what) for what in _workloads(capabilities))
    unit = oracle.error.max_abs
    return ToyResult(ToyVerdict.SERVED, "", layers, worst / unit, unit, trial.ledger.num_steps)


def _checked(trial: Trial, requests: tuple[Request, ...], what: str) -> float:
    """Returns the largest difference of a logit from float64. Raises `ConformanceFailure`."""
    workload = Workload(requests, WORKLOADS[what])
    with trial.engine(workload.config) as engine:
        completions = trial.check(workload, engine).completions
        if Capability.TRACING in trial.capabilities and not _shows(trial, engine, what):
            raise BatchproofError(f"the trace shows nothing {what}")
    pairs = [
        (completion.logits, trial.oracle.score(request.prompt_token_ids, completion.token_ids))
        for request, completion in zip(requests, completions, strict=True)
        if completion.logits is not None
    ]
    return max((float((centred(a) - centred(b)).abs().max()) for a, b in pairs), default=0.0)


def _shows(trial: Trial, engine: Engine, what: str) -> bool:
    """Returns whether the trace shows what the workload is for. An engine that serves waves feeds no
    prompt beside another's decode.
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


def _workloads(capabilities: frozenset[Capability]) -> Iterator[str]:
    """Yields the workloads that the engine is capable of."""
    return (what for what in WORKLOADS if what not in NEEDS or NEEDS[what] in capabilities)


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
