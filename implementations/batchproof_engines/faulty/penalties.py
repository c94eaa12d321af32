"""Penalties, biases and bans of the wrong tokens, of the wrong request, or in the wrong way."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import (
    SamplingParams,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.faulty.random_tokens import (
    ResumedScheduler,
    ShiftedEngine,
    ShiftedSampler,
    with_parameters,
)
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler

PAD_ID = 0
NUM_PADDING = 7  # tokens of the vocabulary that no tokenizer knows, at its end


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/logits-processor-zoo#14")
class OnlyTheFirstRowIsProcessed(Sampler):
    """Of a batch, only the first row's logits are changed as its request wants."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        plain = {"logit_bias": (), "allowed_token_ids": None, "min_tokens": 0}
        rows = [row if not place else with_parameters(row, **plain) for place, row in enumerate(rows)]
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


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/TensorRT-LLM#12358")
class MinTokensCountThePrompt(Sampler):
    """The prompt's tokens count toward min_tokens."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        least = (row.request.sampling or GREEDY).min_tokens
        least -= len(row.request.prompt_token_ids)
        return super().processed(logits, with_parameters(row, min_tokens=max(0, least)))


def _length(row: SampledRow) -> int:
    return len(row.request.prompt_token_ids) + len(row.output_token_ids)


@planted(Promise.P19, Cause.SAMPLING, "huggingface/text-generation-inference#1765")
class PaddingIsPenalised(Sampler):
    """Histories are padded to the longest of the batch, and the padding counts as produced."""

    _longest = 0

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        self._longest = max(map(_length, rows), default=0)
        return super().choose(logits, rows)

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        logits = super().processed(logits, row)
        penalty = (row.request.sampling or GREEDY).frequency_penalty
        logits[PAD_ID] -= penalty * (self._longest - _length(row))
        return logits


@planted(Promise.P19, Cause.SAMPLING, "huggingface/transformers#2302")
class RepetitionRaisesNegativeLogits(Sampler):
    """The repetition penalty divides negative logits as well, which makes their tokens likelier."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        asked = row.request.sampling or GREEDY
        without = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
        logits = super().processed(logits, with_parameters(row, **without))
        logits[sorted({*row.request.prompt_token_ids, *row.output_token_ids})] /= (
            asked.repetition_penalty
        )
        rest = {"allowed_token_ids": None, "min_tokens": 0, "logit_bias": ()}
        return super().processed(logits, with_parameters(row, **rest, repetition_penalty=1.0))


@planted(Promise.P19, Cause.SAMPLING, "mlc-ai/xgrammar#694")
class TheTailOfTheVocabularyIsAllowed(Sampler):
    """The mask of allowed tokens is as wide as the tokenizer knows tokens: the last of the model's
    vocabulary are never masked."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        allowed = (row.request.sampling or GREEDY).allowed_token_ids
        if allowed is not None:
            tail = range(len(logits) - NUM_PADDING, len(logits))
            row = with_parameters(row, allowed_token_ids=allowed | {*tail})
        return super().processed(logits, row)


@planted(Promise.P19, Cause.SAMPLING, "ml-explore/mlx-lm#1225")
class ParametersStayBehind(Sampler):
    """Parameters are kept by row, appended when a request joins, and not moved when one leaves: the
    rows behind it get those of their neighbours until the batch is empty."""

    _kept: Seq[tuple[str, SamplingParams | None]] = ()

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        requests = [row.request for row in rows]
        known = {name for name, _ in self._kept}
        if known.isdisjoint(each.request_id for each in requests):
            self._kept, known = (), set()
        joined = [each for each in requests if each.request_id not in known]
        self._kept = [*self._kept, *((each.request_id, each.sampling) for each in joined)]
        pairs = zip(rows, self._kept, strict=False)  # as many of those kept as there are rows
        return super().choose(
            logits,
            [
                row._replace(request=replace(row.request, sampling=sampling))
                for row, (_, sampling) in pairs
            ],
        )


class _ForgettingSampler(ShiftedSampler):
    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        prompt, outputs = row.request.prompt_token_ids, row.output_token_ids
        moved = replace(row.request, prompt_token_ids=(*prompt, *outputs[: self.shift]))
        return super().processed(logits, SampledRow(moved, outputs[self.shift :]))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#5349")
class APreemptedAnswerCountsAsPrompt(ShiftedEngine):
    """What a request has produced is part of its prompt once it is preempted: the frequency and
    presence penalties forget it, and min_tokens are counted anew."""

    scheduler_class = ResumedScheduler
    sampler_class = _ForgettingSampler
