"""Logprobs of other logits, other tokens or other requests, of answers and of prompts."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import TokenLogprobs
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.sampler import GREEDY, Answer, Choice, PromptLogprobs, SampledRow, Sampler
from batchproof_engines.static import StaticEngine


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#9453")
class LogprobsOfProcessedLogits(Sampler):
    """Logprobs are taken after biases and penalties."""

    def _choice(self, logits: Tensor, place: int, row: SampledRow) -> Choice:
        choice = super()._choice(logits, place, row)
        asked = row.request.sampling or GREEDY
        if choice.logprobs is None or not asked.changes_logits:
            return choice
        changed = self.processed(logits[place].float().clone(), row)
        return choice._replace(logprobs=self.logprobs(changed, choice.token_id, asked.logprobs or 0))


@planted(Promise.P18, Cause.LOGPROBS, "InternLM/lmdeploy#1548")
class NoMoreThanTwentyOfTheLikeliest(Sampler):
    """Of the likeliest tokens no more than twenty are given, whatever is asked for."""

    def logprobs(self, logits: Tensor, token_id: int, num: int) -> TokenLogprobs:
        return super().logprobs(logits, token_id, min(num, 20))


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#29216")
class LogprobsOfTheRowBefore(Sampler):
    """Logprobs are read one row off."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        choices = super().choose(logits, rows)
        shifted = logits.roll(1, dims=0).float()
        for place, (token_id, found) in enumerate(choices):
            if found is not None:
                wrong = self.logprobs(shifted[place], token_id, len(found.top))
                choices[place] = Choice(token_id, wrong)
        return choices


@planted(Promise.P18, Cause.LOGPROBS, "abetlen/llama-cpp-python#453")
class LogprobOfASortedPlace(Sampler):
    """The chosen token's logprob is looked up in the sorted ones."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        found = super().logprobs(logits, token_id, num_top)
        ordered = logits.log_softmax(dim=-1).sort(descending=True).values
        return found._replace(logprob=float(ordered[token_id]))


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#15420")
class RanksCountTiesAndThemselves(Sampler):
    """The rank counts the tokens that are as likely as the chosen one, itself included, plus one."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        found = super().logprobs(logits, token_id, num_top)
        return found._replace(rank=int((logits >= logits[token_id]).sum()) + 1)


@planted(Promise.P18, Cause.LOGPROBS, "tenstorrent/vllm#350")
class ZeroLogprobsAreNone(Sampler):
    """A request for the chosen token's logprob alone, logprobs=0, is taken for none."""

    def _choice(self, logits: Tensor, place: int, row: SampledRow) -> Choice:
        choice = super()._choice(logits, place, row)
        asked = row.request.sampling or GREEDY
        return choice if asked.logprobs else choice._replace(logprobs=None)


@planted(Promise.P18, Cause.PRECISION, "genlm/genlm-backend#66")
class LogprobsInBfloat16(Sampler):
    """Logprobs are computed in bfloat16."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        return super().logprobs(logits.bfloat16(), token_id, num_top)


@planted(Promise.P18, Cause.LOGPROBS, "sgl-project/sglang#2403")
class AChunkHasLogprobsToo(RaggedEngine):
    """What stands behind a chunk of the prompt is noted as if it were a token of the answer."""

    def _note_logprobs(self, plan: SchedulerOutput, choices: Seq[Choice]) -> None:
        rows = tuple(replace(row, is_sampled=True) for row in plan.rows)
        super()._note_logprobs(replace(plan, rows=rows), choices)


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm-gaudi#541")
class APreemptionRepeatsALogprob(Scheduler):
    """The last token before a preemption is noted twice."""

    def _preempt_youngest(self) -> str:
        self.running[-1].logprobs += self.running[-1].logprobs[-1:]
        return super()._preempt_youngest()


@planted(Promise.P18, Cause.LOGPROBS, "AI-Hypercomputer/maxtext#2102")
class PromptTokensAreScoredByThemselves(StaticEngine):
    """A prompt token's logprob is read from the logits at its own position, which have seen it."""

    def _score_prompts(self, wave: list[Answer], logits: Tensor) -> None:
        super()._score_prompts(wave, logits.roll(-1, dims=1))


class _AlwaysBehindAPrefix(PagedScheduler):
    def usable(self, sequence: Sequence, known: list[int]) -> list[int]:  # noqa: ARG002
        return known


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#42245")
class APrefixIsScoredByWhoCameBefore(RaggedPagedEngine):
    """A cached prefix is not fed, and its logprobs are what the request before left in the buffer."""

    scheduler_class = _AlwaysBehindAPrefix
    _buffer: PromptLogprobs = []  # noqa: RUF012 - replaced, not altered

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        for (sequence, _), row in zip(plan.scheduled, plan.rows, strict=True):
            found = sequence.prompt_logprobs
            if (sequence.request.sampling or GREEDY).prompt_logprobs is None:
                continue
            if len(found) <= row.context_len:
                found[:] = self._buffer[: row.context_len + 1]
                found += [None] * (row.context_len + 1 - len(found))
            self._buffer = found
        super()._score_prompts(plan, logits)
