"""Tokens that are chosen by other parameters than the request's own, or at the wrong time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
from torch import Tensor

from batchproof.api import FinishReason, Request, SamplingParams
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Scheduler, Sequence
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler


def _with(row: SampledRow, **changes: object) -> SampledRow:
    """Returns the row with other parameters."""
    asked = replace(row.request.sampling or GREEDY, **changes)  # type: ignore[arg-type]
    return row._replace(request=replace(row.request, sampling=asked))


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/logits-processor-zoo#14")
class OnlyTheFirstRowIsProcessed(Sampler):
    """Of a batch, only the first row's logits are changed as its request wants."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        plain = {"logit_bias": (), "allowed_token_ids": None, "min_tokens": 0}
        rows = [row if not place else _with(row, **plain) for place, row in enumerate(rows)]
        return super().choose(logits, rows)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#14301")
class TopKOfTheNeighbour(Sampler):
    """A row without a top_k gets the largest of the batch."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        largest = max((row.request.sampling.top_k for row in rows if row.request.sampling), default=0)
        asked = [row.request.sampling for row in rows]
        lacking = [each is not None and each.temperature > 0 and not each.top_k for each in asked]
        return super().choose(
            logits,
            [
                _with(row, top_k=largest) if lacks else row
                for row, lacks in zip(rows, lacking, strict=True)
            ],
        )


@planted(Promise.P19, Cause.SAMPLING, "paiml/aprender#2027")
class ABatchIsGreedy(Sampler):
    """The tokens of a batch are the likeliest, whatever the temperature; only one alone is drawn."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        if len(rows) > 1:
            rows = [_with(row, temperature=0.0) if row.request.sampling else row for row in rows]
        return super().choose(logits, rows)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm-ascend#7769")
class PenaltiesMissTheNewestToken(Sampler):
    """Penalties see the tokens produced before the last step, which is read late."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        asked = row.request.sampling or GREEDY
        if asked.frequency_penalty or asked.presence_penalty or asked.repetition_penalty != 1.0:
            row = row._replace(output_token_ids=row.output_token_ids[:-1])
        return super().processed(logits, row)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm-metal#69")
class FrequencyCountsThePrompt(Sampler):
    """The frequency and presence penalties count tokens of the prompt as well."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        asked = row.request.sampling or GREEDY
        logits = super().processed(logits, row)
        for token_id in row.request.prompt_token_ids:
            logits[token_id] -= asked.frequency_penalty
        return logits


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#1424")
class RepetitionForgetsThePrompt(Sampler):
    """The repetition penalty is applied to produced tokens alone."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        request = replace(row.request, prompt_token_ids=())
        return super().processed(logits, row._replace(request=request))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#46243")
class MinTokensLastOneTooLong(Sampler):
    """EOS ids are let through a step late."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        least = (row.request.sampling or GREEDY).min_tokens
        return super().processed(logits, _with(row, min_tokens=least + 1) if least else row)


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/TensorRT-LLM#12358")
class MinTokensCountThePrompt(Sampler):
    """The prompt's tokens count toward min_tokens."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        least = (row.request.sampling or GREEDY).min_tokens
        least -= len(row.request.prompt_token_ids)
        return super().processed(logits, _with(row, min_tokens=max(0, least)))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#5849")
class MinTokensHoldOneEosBack(Sampler):
    """Of several EOS ids only the first is held back until min_tokens are produced."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        first = frozenset(sorted(row.request.eos_token_ids)[:1])
        return super().processed(
            logits, row._replace(request=replace(row.request, eos_token_ids=first))
        )


@planted(Promise.P19, Cause.EOS, "vllm-project/vllm#21987")
class StopsBeforeMinTokens(Sequence):
    """A stop sequence ends the answer although fewer than min_tokens were produced."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        asked, outputs = self.request.sampling or GREEDY, tuple(self.output_token_ids)
        if any(outputs[-len(each) :] == each for each in asked.stop_token_sequences):
            self.finish_reason = FinishReason.STOP


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#51226")
class SeedsAreIgnoredBesideOthersWithout(Sampler):
    """A batch with a greedy or unseeded row draws from one stream for all."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        seeds = {(row.request.sampling or GREEDY).seed for row in rows}
        if len(seeds) > 1:
            rows = [_with(row, seed=None) if row.request.sampling else row for row in rows]
        return super().choose(logits, rows)


@planted(Promise.P19, Cause.SAMPLING, "tenstorrent/tt-metal#53802")
class SeedsAreSaltedByTheRow(Sampler):
    """The row of the batch enters the seed."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        salted = []
        for place, row in enumerate(rows):
            seed = (row.request.sampling or GREEDY).seed
            salted.append(row if seed is None else _with(row, seed=seed + 1000 * place))
        return super().choose(logits, salted)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#11953")
class WithoutASeedItIsZero(Sampler):
    """Requests without a seed all have the seed 0, and so draw alike."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(seed or 0, index, size)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#1595")
class EachTokenStartsTheSeedAnew(Sampler):
    """The seed is set before each token, so that every step draws with the same numbers."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:  # noqa: ARG002
        return super().noise(seed, 0, size)


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/tpu-inference#1386")
class TopKIsOneByDefault(Sampler):
    """A request that leaves top_k open gets the likeliest token."""

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        return super().truncated(logits, replace(asked, top_k=asked.top_k or 1))


@planted(Promise.P19, Cause.SAMPLING, "gonka-ai/gonka#1170")
class ParametersAreNotLookedAt(Scheduler):
    """A request is taken whatever its parameters are; an unknown token in them is met in the step."""

    def refusal(self, request: Request) -> str | None:
        return super().refusal(replace(request, sampling=None))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#3333")
class SeedsAreAllTheSame(Sampler):
    """Every seed is taken for zero."""

    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:
        return super().noise(None if seed is None else 0, index, size)
