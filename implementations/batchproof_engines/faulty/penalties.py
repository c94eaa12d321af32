"""Penalties, biases and bans of the wrong tokens, of the wrong request, or in the wrong way."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

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


@planted(Promise.P19, Cause.SAMPLING, "jundot/omlx#3011")
class PenaltiesLookBack256Tokens(Sampler):
    """The repetition penalty sees the last 256 tokens of prompt and answer alone."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        prompt = row.request.prompt_token_ids
        start = max(0, len(prompt) + len(row.output_token_ids) - 256)
        seen = replace(row.request, prompt_token_ids=prompt[start:])
        return super().processed(logits, row._replace(request=seen))


@planted(Promise.P19, Cause.SAMPLING, "NVIDIA/TensorRT-LLM#12358")
class MinTokensCountThePrompt(Sampler):
    """The prompt's tokens count toward min_tokens."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        least = (row.request.sampling or GREEDY).min_tokens
        least -= len(row.request.prompt_token_ids)
        return super().processed(logits, with_parameters(row, min_tokens=max(0, least)))


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
