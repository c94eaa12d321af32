"""What a precision moves margins by, measured on a model."""

import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Prompt
from batchproof.oracle.precision import Precision
from batchproof.oracle.rounding import coarse_to_score
from batchproof.records.probe_packs import NUM_RANKED, PrecisionNoise, Step
from batchproof.triage.hypotheses import noisy, scale_of
from batchproof.triage.texts import random_prompt

NOISE = Precision("bfloat16")  # of an honest engine
PRECISIONS = (
    NOISE,
    Precision("bfloat16", weights="int8"),
    Precision("bfloat16", weights="fp8"),
    Precision("bfloat16", weights="int4"),
    Precision("bfloat16", weights="int4", has_rounded_ends=True),  # as by mlx_lm.convert
    Precision("bfloat16", kv_cache="int8"),
    Precision("bfloat16", kv_cache="fp8"),
    Precision("bfloat16", kv_cache="int4"),
)
NUM_PROMPTS, LENGTH = 8, 64  # on which noise is measured
FITTED = tuple(2 ** (each / 4) for each in range(-12, 5))
MOST_FLIPS = 0.9  # of tokens; what flips more is no precision in which the model can be served


def noise_of(subject: ModelUnderTest, seed: int) -> tuple[float, tuple[PrecisionNoise, ...]]:
    """Returns sigma of the arithmetic in the model's own dtype, in units of a logit, and how much
    coarser each precision is, in sigma, the finest first."""
    length = min(LENGTH, subject.context_len)
    prompts = [random_prompt(subject, random.Random(seed + i), length) for i in range(NUM_PROMPTS)]
    known = [step for logits in logits_of(subject.scorer, prompts) for step in ranked(logits)]
    own = Precision(subject.dtype_name)
    unit = _root_mean_square(_rounded(subject, prompts, known, own)[0])
    steps = [replace(step, behind=tuple(each / unit for each in step.behind)) for step in known]
    found = []
    # None bridges the margins of a constructed model.
    coarser = () if subject.oracle is not None else PRECISIONS
    for each in coarser:
        if each == own:
            continue
        moved, chosen = _rounded(subject, prompts, known, each)
        shift = _root_mean_square(moved) / unit
        flips = fmean(token != step.tokens[0] for token, step in zip(chosen, known, strict=True))
        if shift > 1 and flips < MOST_FLIPS:
            scale = _fitted_scale(steps, chosen, scale_of(shift))
            found.append(PrecisionNoise(str(each), shift, scale, int(each.kv_cache is not None)))
    return unit, tuple(sorted(found, key=lambda each: each.shift))


def _fitted_scale(steps: Sequence[Step], chosen: Sequence[int], start: float) -> float:
    """Returns the scale of noise that makes the choices of a precision likeliest, within `FITTED` times
    of that of its shift."""
    places = [
        step.tokens.index(token) if token in step.tokens else len(step.tokens)
        for step, token in zip(steps, chosen, strict=True)
    ]

    def fit(scale: float) -> float:
        return sum(math.log(noisy(s, scale)[p]) for s, p in zip(steps, places, strict=True))

    return max((start * each for each in FITTED), key=fit)


@torch.inference_mode()
def logits_of(model: Any, prompts: Sequence[Prompt]) -> Iterator[Tensor]:
    """Yields the logits (tokens, vocab) of each prompt in float64 on the CPU, one at a time:
    vocabularies are large."""
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        yield model(input_ids=ids, use_cache=False).logits[0].cpu().double()


def ranked(logits: Tensor) -> Iterator[Step]:
    """Yields the best tokens by each row of logits, (tokens, vocab), and how far each is behind the
    best, in units of a logit."""
    top = logits.topk(min(NUM_RANKED, logits.shape[-1]))
    for values, tokens in zip(top.values, top.indices, strict=True):
        yield Step(tuple(tokens.tolist()), tuple((values[0] - values).tolist()))


def _rounded(
    subject: ModelUnderTest, prompts: Sequence[Prompt], known: Sequence[Step], precision: Precision
) -> tuple[list[float], list[int]]:
    """Returns the shift of each margin at this precision, and the token that it makes the best."""
    began = time.monotonic()
    shifts, chosen, steps = list[float](), list[int](), iter(known)
    for logits in logits_of(coarse_to_score(subject, precision), prompts):
        chosen += logits.argmax(-1).tolist()
        for row, step in zip(logits, steps, strict=False):
            best, second = row[list(step.tokens[:2])].tolist()
            shifts.append(best - second - step.behind[1])
    print(f"{subject.name}: {precision}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return shifts, chosen


def _root_mean_square(shifts: Sequence[float]) -> float:
    return float(torch.tensor(shifts, dtype=torch.float64).square().mean().sqrt())
