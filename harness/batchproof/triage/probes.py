"""What an engine is asked: prompts of many shapes, and near-ties of dialled margin."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import GenerationConfig

from batchproof.api import Request
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Prompt
from batchproof.triage.scoring import Scorer

LENGTHS = (1, 2, 3, 5, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 130)
SHARED = (8, 16, 24, 32)  # tokens of prompts that begin alike
CAP = 8  # new tokens at most
LONG_CAP = 100  # of one answer
LONGEST_FILLED = 512  # positions of a model whose context is filled to the end

LADDER_LENGTHS = (5, 13, 22, 37)  # of the prompts among which near-ties are looked for
LADDER_STEPS = 8
LARGE = 50_000_000  # parameters from which on fewer are looked through
PER_RUNG = 2
FIRST_RUNG, NUM_RUNGS = 0.5, 18  # in E; each rung is twice the one before


@dataclass(frozen=True)
class Probes:
    """`prompts` of many shapes. `ladder`: requests whose last token is a near-tie, by margin."""

    prompts: tuple[Prompt, ...]
    ladder: tuple[Request, ...]

    @property
    def alone(self) -> list[Request]:
        """What is asked first, one request at a time."""
        plain = [Request(f"plain-{i}", each, CAP) for i, each in enumerate(self.prompts)]
        longest = Request("long-answer", self.prompts[2], LONG_CAP)
        return [*plain, longest, *self.ladder]


def probes(scorer: Scorer, error_unit: float | None, seed: int) -> Probes:
    """Returns seeded probes for a model; `error_unit` is E, None for a model without near-ties."""
    subject = scorer.subject
    rng = random.Random(seed)
    alphabet = [each for each in range(subject.vocab_size) if subject.has_answer((each,))]

    def drawn(length: int) -> Prompt:
        return tuple(rng.choices(alphabet, k=length))

    room = subject.context_len - CAP
    prompts = [drawn(each) for each in LENGTHS if each <= room]
    start = drawn(max(SHARED))
    alike = (start, start[::-1], (*start[16:], *start[:16]))  # a weak hash takes them for the same
    prompts += [(*start[:each], *drawn(9)) for each in SHARED if each + 9 <= room]
    prompts += [(*each, *drawn(5)) for each in alike if len(each) + 5 <= room]
    if subject.context_len <= LONGEST_FILLED:
        prompts.append(drawn(room))
    candidates = [[drawn(each) for _ in range(_num_candidates(subject))] for each in LADDER_LENGTHS]
    ladder = () if error_unit is None else _ladder(scorer, candidates, error_unit)
    return Probes(tuple(prompts), ladder)


def _num_candidates(subject: ModelUnderTest) -> int:
    return 96 if subject.model.num_parameters() < LARGE else 4


def _ladder(scorer: Scorer, candidates: list[list[Prompt]], error_unit: float) -> tuple[Request, ...]:
    """Returns up to `PER_RUNG` requests on each rung, the smallest margin first. An answer runs up to
    the near-tie."""
    found: list[tuple[float, Prompt, int]] = []
    for prompts in candidates:
        answers = _continued(scorer.subject, prompts)
        scores = scorer.logits(answers)
        for prompt, tokens in answers:
            margins = -scores[prompt, tokens].topk(2).values.diff()[:, 0]
            found += [(float(margin), prompt, step + 1) for step, margin in enumerate(margins)]
    found.sort()
    rungs: dict[int, list[Request]] = {}
    for margin, prompt, cap in found:
        rung = next((k for k in range(NUM_RUNGS) if margin < FIRST_RUNG * 2**k * error_unit), None)
        if rung is not None and len(rungs.setdefault(rung, [])) < PER_RUNG:
            place = len(rungs[rung])
            rungs[rung].append(Request(f"near-tie-{rung}-{place}", prompt, cap))
    return tuple(each for rung in sorted(rungs) for each in rungs[rung])


@torch.inference_mode()
def _continued(subject: ModelUnderTest, prompts: list[Prompt]) -> list[tuple[Prompt, tuple[int, ...]]]:
    """Returns prompts of one length with greedy tokens of the model itself, in one batch. They only
    propose near-ties: float64 tells the margins."""
    model = subject.model
    input_ids = torch.tensor(prompts, device=model.device)
    settings = GenerationConfig(max_new_tokens=LADDER_STEPS, do_sample=False, pad_token_id=0)
    ids = cast(Any, model).generate(
        input_ids, attention_mask=torch.ones_like(input_ids), generation_config=settings
    )
    new = ids[:, input_ids.shape[1] :].tolist()
    return [(prompt, tuple(tokens)) for prompt, tokens in zip(prompts, new, strict=True)]
