"""Tokens drawn from another distribution, or by other random numbers, than the request asks for."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from batchproof.api import SamplingParams
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler


def with_parameters(row: SampledRow, **changes: object) -> SampledRow:
    """Returns the row with other parameters."""
    asked = replace(row.request.sampling or GREEDY, **changes)  # type: ignore[arg-type]
    return row._replace(request=replace(row.request, sampling=asked))


@dataclass(slots=True, eq=False)
class ShiftedSequence(Sequence):
    """A sequence whose generator is not where the number of its tokens says."""

    shift: int = 0


class ResumedScheduler(Scheduler):
    """Notes as a sequence's shift how many tokens it had at its last preemption."""

    sequence_class = ShiftedSequence

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, ShiftedSequence), "this scheduler makes no other sequences"
        victim.shift = len(victim.output_token_ids)
        return super()._preempt_youngest()


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

    def _choices(self, plan: SchedulerOutput, logits: Tensor) -> list[Choice]:
        sequences = [each for each, _ in plan.scheduled if isinstance(each, ShiftedSequence)]
        self._sampler.shifts = [each.shift for each in sequences]
        return super()._choices(plan, logits)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#1885")
class TopPBeforeTopK(Sampler):
    """The nucleus is cut from all tokens, and not from what top_k leaves of them."""

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        logits = super().truncated(logits, SamplingParams(top_p=asked.top_p))
        return super().truncated(logits, replace(asked, top_p=1.0))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#49613")
class TopKStaysInTheRow(Sampler):
    """The last request moves to a row that became free, and leaves its top_k behind."""

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str | None] = []
        self._top_k: list[int] = []

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        asked = {row.request.request_id: row.request.sampling or GREEDY for row in rows}
        self._names = [name if name in asked else None for name in self._names]
        for name in [each for each in asked if each not in self._names]:
            if None not in self._names:
                self._names.append(None)
                self._top_k.append(0)
            place = self._names.index(None)
            self._names[place], self._top_k[place] = name, asked[name].top_k
        while None in self._names:
            last = self._names.pop()
            if last is not None:
                self._names[self._names.index(None)] = last
        kept = dict(zip(self._names, self._top_k, strict=False))
        moved = [with_parameters(row, top_k=kept[row.request.request_id]) for row in rows]
        return super().choose(logits, moved)


@planted(Promise.P19, Cause.SAMPLING, "RL-Align/RL-Kernel#81")
class TemperatureTwice(Sampler):
    """Logits are divided by the temperature before the draw, and by the draw."""

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        return super().drawn(logits / (row.request.sampling or GREEDY).temperature, row)


class _RestartingSampler(ShiftedSampler):
    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed, index - self.shift, size)


@planted(Promise.P19, Cause.SAMPLING, "invoke-ai/InvokeAI#2386")
class SeedsOfSixteenBits(Sampler):
    """A seed keeps its lower sixteen bits."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(None if seed is None else seed & 0xFFFF, index, size)


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/TensorRT-Edge-LLM#212")
class RandomNumbersRepeatAfter64Tokens(Sampler):
    """The random numbers of a seed come from a table of 64, which starts anew."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed, index % 64, size)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#19940")
class SeedsStartAnewAfterAPreemption(ShiftedEngine):
    """A resumed request gets a new generator, which draws the first numbers of its seed again."""

    scheduler_class = ResumedScheduler
    sampler_class = _RestartingSampler


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#51226")
class SeedsAreIgnoredBesideOthersWithout(Sampler):
    """A batch with a greedy or unseeded row draws from one stream for all."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        seeds = {(row.request.sampling or GREEDY).seed for row in rows}
        if len(seeds) > 1:
            rows = [with_parameters(row, seed=None) if row.request.sampling else row for row in rows]
        return super().choose(logits, rows)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#11953")
class WithoutASeedItIsZero(Sampler):
    """Requests without a seed all have the seed 0, and so draw alike."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed or 0, index, size)
