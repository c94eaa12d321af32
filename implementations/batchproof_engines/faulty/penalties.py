"""Penalties, biases and bans of the wrong tokens, of the wrong request, or in the wrong way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import SamplingParams
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.choosing import _with as with_parameters
from batchproof_engines.faulty.drawing import ResumedScheduler, ShiftedEngine, ShiftedSampler
from batchproof_engines.faulty.fault import planted
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler

PAD_ID = 0
WINDOW = 20  # tokens
NUM_PADDING = 7  # tokens of the vocabulary that no tokenizer knows, at its end


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


def _length(row: SampledRow) -> int:
    return len(row.request.prompt_token_ids) + len(row.output_token_ids)


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


@planted(Promise.P19, Cause.SAMPLING, "huggingface/transformers.js#1062")
class RepetitionCompounds(Sampler):
    """The repetition penalty is applied once for each occurrence of a token."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        penalty = (row.request.sampling or GREEDY).repetition_penalty
        logits = super().processed(logits, row)
        for token_id, count in Counter([*row.request.prompt_token_ids, *row.output_token_ids]).items():
            factor = penalty ** (count - 1)
            logits[token_id] *= 1 / factor if logits[token_id] > 0 else factor
        return logits


@planted(Promise.P19, Cause.SAMPLING, "jundot/omlx#3012")
class RepetitionLooksTwentyTokensBack(Sampler):
    """The repetition penalty sees the last 20 tokens of prompt and answer."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        room = max(0, WINDOW - len(row.output_token_ids))
        seen = row.request.prompt_token_ids[-room:] if room else ()
        return super().processed(
            logits, row._replace(request=replace(row.request, prompt_token_ids=seen))
        )


@planted(Promise.P19, Cause.SAMPLING, "mlc-ai/mlc-llm#1693")
class FrequencyIsThePresence(Sampler):
    """The presence penalty is passed for both penalties."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        presence = (row.request.sampling or GREEDY).presence_penalty
        return super().processed(logits, with_parameters(row, frequency_penalty=presence))


@planted(Promise.P19, Cause.SAMPLING, "vllm-project/vllm#913")
class NegativePenaltiesAreSkipped(Sampler):
    """A request is penalised only if one of its penalties is positive."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        asked = row.request.sampling or GREEDY
        if max(asked.frequency_penalty, asked.presence_penalty) <= 0:
            row = with_parameters(row, frequency_penalty=0.0, presence_penalty=0.0)
        return super().processed(logits, row)


@planted(Promise.P19, Cause.SAMPLING, "youssofal/MTPLX#164")
class GreedyRowsGoUnpenalised(Sampler):
    """A greedy row takes a short way to its argmax, on which there are no penalties."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        if (row.request.sampling or GREEDY).temperature == 0:
            row = with_parameters(row, frequency_penalty=0.0, presence_penalty=0.0)
        return super().processed(logits, row)


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
