"""What the right answer is, and how far rounding may carry an honest engine from it.

Three sources, each computed once and kept:

* `answer`: per-prompt greedy generation by the reference engine, in the dtype under test, with the
  logits and the top-2 margin of every step;
* `score`: one teacher-forced float64 pass over a prompt and *an engine's own* tokens, so that after
  a flip nothing has to be forced into the engine;
* `error`: E, the worst logit error of the reference itself against float64 of the same weights. All
  tolerances are multiples of it; none is guessed.

Logits are compared centred over the vocabulary: a constant added to all of them changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.api import EngineConfig, EngineFactory, FinishReason, Request
from harness.models.catalogue import ModelUnderTest

# Measured for correct packed and padded engines: up to 2.8 E in float32, 1.5 E (2.4 on a chaotic
# model) in bfloat16, while the weakest observable fault stood at 624 E in float32.
KAPPA = {"float64": 8.0, "float32": 8.0, "bfloat16": 3.0, "float16": 3.0}

ANSWER_CHUNK = 6  # answers are worked out in multiples of this many tokens
NUM_CALIBRATION_PROMPTS = 12
NUM_CALIBRATION_STEPS = 24


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy continuation without EOS: `logits` is float32 `(len(token_ids), vocab)`."""

    token_ids: tuple[int, ...]
    logits: Tensor

    def margin(self, step: int) -> float:
        """Best logit minus second best: how far the step is from going the other way."""
        best, second = self.logits[step].topk(2).values.tolist()
        return float(best - second)


@dataclass(frozen=True, slots=True)
class ErrorUnit:
    """E: the reference's own distance from float64, over `num_steps` steps."""

    max_abs: float
    rms: float
    num_steps: int
    num_flips: int  # steps at which float64 would have chosen another token
    near_tie_share: float  # steps whose float64 margin lies within 2 kappa E: the ones that may flip


class Oracle:
    """Right answers for one model under test."""

    def __init__(self, subject: ModelUnderTest, reference: EngineFactory) -> None:
        self.subject = subject
        self._reference = reference(subject.model, EngineConfig(return_logits=True))
        self._answers: dict[tuple[int, ...], Answer] = {}
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}

    @property
    def kappa(self) -> float:
        return KAPPA[self.subject.dtype_name]

    def answer(self, prompt: tuple[int, ...], max_new_tokens: int) -> Answer:
        """The first `max_new_tokens` greedy tokens after the prompt, EOS ignored."""
        known = self._answers.get(prompt)
        if known is None or len(known.token_ids) < max_new_tokens:
            # A little more than asked for: the same prompt comes back with another cap.
            room = self.subject.context_len - len(prompt)
            length = min(-(-max_new_tokens // ANSWER_CHUNK) * ANSWER_CHUNK, room)
            (completion,) = self._reference.generate([Request("reference", prompt, length)])
            assert completion.logits is not None, completion.error
            known = Answer(completion.token_ids, completion.logits)
            self._answers[prompt] = known
        return Answer(known.token_ids[:max_new_tokens], known.logits[:max_new_tokens])

    def expected(self, request: Request) -> tuple[tuple[int, ...], FinishReason]:
        """Tokens and finish reason of a good request: the answer, cut at its first EOS."""
        token_ids = self.answer(request.prompt_token_ids, request.max_new_tokens).token_ids
        return cut(token_ids, request.eos_token_ids)

    def constructed_answer(
        self, prompt: tuple[int, ...], max_new_tokens: int
    ) -> tuple[int, ...] | None:
        """The same in integer arithmetic, for models that are constructed; else None."""
        if self.subject.oracle is None:
            return None
        return tuple(self.subject.oracle(prompt, max_new_tokens))

    def score(self, prompt: tuple[int, ...], token_ids: tuple[int, ...]) -> Tensor:
        """Float64 logits `(len(token_ids), vocab)`: row i is what token i should be chosen from,
        given the tokens before it."""
        key = (prompt, token_ids)
        if key not in self._scores:
            self._scores[key] = teacher_forced(self.subject, prompt, token_ids)
        return self._scores[key]

    @cached_property
    def error(self) -> ErrorUnit:
        """E of this model, dtype and device, measured on generated prompts (fixed seed)."""
        rng = random.Random(0)
        longest = min(64, self.subject.context_len - NUM_CALIBRATION_STEPS)
        errors: list[Tensor] = []
        margins: list[Tensor] = []
        num_flips = 0
        for _ in range(NUM_CALIBRATION_PROMPTS):
            length = rng.randint(1, longest)
            prompt = tuple(rng.randrange(self.subject.vocab_size) for _ in range(length))
            answer = self.answer(prompt, NUM_CALIBRATION_STEPS)
            exact = teacher_forced(self.subject, prompt, answer.token_ids)
            errors.append(centred(answer.logits) - centred(exact))
            margins.append(exact.topk(2).values.diff().abs().flatten())
            num_flips += int((exact.argmax(-1) != torch.tensor(answer.token_ids)).sum())
        error, margin = torch.cat(errors), torch.cat(margins)
        max_abs = error.abs().max().item()
        return ErrorUnit(
            max_abs=max_abs,
            rms=error.pow(2).mean().sqrt().item(),
            num_steps=len(margin),
            num_flips=num_flips,
            near_tie_share=(margin <= 2 * self.kappa * max_abs).double().mean().item(),
        )


def cut(
    token_ids: Sequence[int], eos_token_ids: frozenset[int]
) -> tuple[tuple[int, ...], FinishReason]:
    """End a greedy continuation at its first EOS; LENGTH if there is none."""
    for index, token_id in enumerate(token_ids):
        if token_id in eos_token_ids:
            return tuple(token_ids[: index + 1]), FinishReason.STOP
    return tuple(token_ids), FinishReason.LENGTH


@torch.inference_mode()
def teacher_forced(
    subject: ModelUnderTest, prompt: tuple[int, ...], token_ids: tuple[int, ...]
) -> Tensor:
    """One float64 pass without cache over prompt and tokens; CPU logits `(len(token_ids), vocab)`."""
    model = subject.exact
    fed = torch.tensor([(*prompt, *token_ids[:-1])], device=model.device)
    logits = model(input_ids=fed, use_cache=False).logits
    return logits[0, len(prompt) - 1 :].cpu()


def centred(logits: Tensor) -> Tensor:
    """Float64 logits on the CPU, minus their mean over the vocabulary."""
    logits = logits.detach().cpu().double()
    return logits - logits.mean(dim=-1, keepdim=True)
