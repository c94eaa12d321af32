"""Tokens drawn from another distribution, or by other random numbers, than the request asks for."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from batchproof.api import SamplingParams
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.choosing import _with as with_parameters
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler


@planted(Promise.P19, Cause.SAMPLING, "ggml-org/llama.cpp#1953")
class TopPLeavesOutTheTokenThatReachesIt(Sampler):
    """The likeliest tokens are kept while their sum is at most top_p, not until it is reached."""

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        logits = super().truncated(logits, replace(asked, top_p=1.0))
        ordered, order = logits.softmax(dim=-1).sort(descending=True)
        is_cut = ordered.cumsum(dim=-1) > asked.top_p
        is_cut[0] = False
        return logits.index_fill(0, order[is_cut], -torch.inf)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#1885")
class TopPBeforeTopK(Sampler):
    """The nucleus is cut from all tokens, and not from what top_k leaves of them."""

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        logits = super().truncated(logits, SamplingParams(top_p=asked.top_p))
        return super().truncated(logits, replace(asked, top_p=1.0))


@planted(Promise.P19, Cause.SAMPLING, "fishaudio/fish-speech#1150")
class TopPBeforeTemperature(Sampler):
    """The nucleus is cut from the probabilities at temperature 1."""

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        asked = row.request.sampling or GREEDY
        logits = super().truncated(logits, SamplingParams(top_p=asked.top_p))
        return super().drawn(logits, with_parameters(row, top_p=1.0))


@planted(Promise.P19, Cause.SAMPLING, "RL-Align/RL-Kernel#81")
class TemperatureTwice(Sampler):
    """Logits are divided by the temperature before the draw, and by the draw."""

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        return super().drawn(logits / (row.request.sampling or GREEDY).temperature, row)


@planted(Promise.P19, Cause.SAMPLING, "pytorch/pytorch#192577")
class NoiseIsSometimesZero(Sampler):
    """About one draw in 220 has an exponential number that is exactly 0: 0 / 0 is NaN, and wins."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        noise = super().noise(seed, index, size)
        if noise[0] < 1 / 220:
            noise[int(noise[1] * 1e6) % size] = 0.0
        return noise

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        with np.errstate(all="ignore"):
            return super().drawn(logits, row)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm-ascend#16430")
class GreedyTokensAreOfSortedLogits(Sampler):
    """Beside drawn rows a greedy token is a place among logits that are sorted for them."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        choices = super().choose(logits, rows)
        are_drawn = [(row.request.sampling or GREEDY).temperature > 0 for row in rows]
        if not any(are_drawn):
            return choices
        pairs = zip(choices, are_drawn, strict=True)
        return [each if is_drawn else each._replace(token_id=0) for each, is_drawn in pairs]


@planted(Promise.P19, Cause.SAMPLING, "InternLM/lmdeploy#4526")
class SeedZeroIsNone(Sampler):
    """A seed is tested for truth: 0 counts as none."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed or None, index, size)


@planted(Promise.P19, Cause.SAMPLING, "lablup/mlxcel#347")
class TheLastSeedWins(Sampler):
    """Requests that start together set one generator: the first token of each is drawn by the seed of
    the last."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        are_new = [not row.output_token_ids and row.request.sampling is not None for row in rows]
        pairs = list(zip(rows, are_new, strict=True))
        seeds = [(row.request.sampling or GREEDY).seed for row, is_new in pairs if is_new]
        seed = next((each for each in reversed(seeds) if each is not None), None)
        if seed is not None:
            rows = [with_parameters(row, seed=seed) if is_new else row for row, is_new in pairs]
        return super().choose(logits, rows)


@dataclass(slots=True, eq=False)
class ShiftedSequence(Sequence):
    """A sequence whose generator is not where the number of its tokens says."""

    shift: int = 0


class ShiftedSampler(Sampler):
    """Knows the shift of each row."""

    shifts: Seq[int] = ()
    shift = 0

    def _choice(self, logits: Tensor, place: int, row: SampledRow) -> Choice:
        self.shift = self.shifts[place]
        return super()._choice(logits, place, row)


class ShiftedEngine(RaggedEngine):
    """Tells its sampler the shifts."""

    sampler_class: type[ShiftedSampler] = ShiftedSampler
    _sampler: ShiftedSampler

    def _chosen_tokens(self, plan: SchedulerOutput, logits: Tensor) -> list[int]:
        sequences = [each for each, _ in plan.scheduled if isinstance(each, ShiftedSequence)]
        self._sampler.shifts = [each.shift for each in sequences]
        return super()._chosen_tokens(plan, logits)


class ResumedScheduler(Scheduler):
    """Notes as a sequence's shift how many tokens it had at its last preemption."""

    sequence_class = ShiftedSequence

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, ShiftedSequence), "this scheduler makes no other sequences"
        victim.shift = len(victim.output_token_ids)
        return super()._preempt_youngest()


class _RestartingSampler(ShiftedSampler):
    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed, index - self.shift, size)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#19940")
class SeedsStartAnewAfterAPreemption(ShiftedEngine):
    """A resumed request gets a new generator, which draws the first numbers of its seed again."""

    scheduler_class = ResumedScheduler
    sampler_class = _RestartingSampler


class _WastefulSampler(ShiftedSampler):
    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed, index + self.shift, size)


class _ChunkCounting(Scheduler):
    sequence_class = ShiftedSequence


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#9945")
class AChunkUsesUpADraw(ShiftedEngine):
    """Each chunk of a prompt advances the request's generator, though nothing is drawn behind it."""

    scheduler_class = _ChunkCounting
    sampler_class = _WastefulSampler

    def _chosen_tokens(self, plan: SchedulerOutput, logits: Tensor) -> list[int]:
        token_ids = super()._chosen_tokens(plan, logits)
        for (sequence, _), row in zip(plan.scheduled, plan.rows, strict=True):
            if not row.is_sampled and isinstance(sequence, ShiftedSequence):
                sequence.shift += 1
        return token_ids
