"""Logprobs of other logits, other tokens or other requests."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from batchproof.api import TokenLogprobs
from batchproof.findings.causes import Cause
from batchproof.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler


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


@planted(Promise.P18, Cause.LOGPROBS, "NVIDIA/TensorRT-LLM#17701")
class PenaltiesReachTheLogits(Sampler):
    """Logits are changed in place, before logprobs are taken of them."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        self._changed = super().processed(logits, row)
        return self._changed

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        changed = self.__dict__.pop("_changed", logits)
        return super().logprobs(changed, token_id, num_top)


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


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#36746")
class TheChosenIsNotAmongTheLikeliest(Sampler):
    """The chosen token is left out of the likeliest, for it is told already."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        found = super().logprobs(logits, token_id, num_top + 1)
        others = tuple(each for each in found.top if each[0] != token_id)
        return found._replace(top=others[:num_top])


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#15420")
class RanksCountTiesAndThemselves(Sampler):
    """The rank counts the tokens that are as likely as the chosen one, itself included, plus one."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        found = super().logprobs(logits, token_id, num_top)
        return found._replace(rank=int((logits >= logits[token_id]).sum()) + 1)
