"""Drafts that are taken for right, or right ones that end up elsewhere."""

from dataclasses import replace

from torch import Tensor

from batchproof.api import TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.drafting import NgramDrafter, Speculator
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.sampler import Choice, SampledRow


@planted(Promise.P17, Cause.SPECULATION, "jaymody/speculative-sampling#3")
class NearlyRightDraftsAreAccepted(Speculator):
    """The first draft of a row is accepted whatever the model would have chosen."""

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        num = super().num_right(sequence, drafts, choices)
        return max(2, num) if drafts and choices[0] not in sequence.request.eos_token_ids else num


@planted(Promise.P17, Cause.SPECULATION, "huggingface/transformers#47912")
class AnEosAmongDraftsIsMissed(Speculator):
    """Only the last token of a step is compared with the EOS ids."""

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        num = 1
        while num < len(choices) and drafts[num - 1] == choices[num - 1]:
            num += 1
        if sequence.request.eos_token_ids & {*choices[: num - 1]}:  # it is not looked for again
            sequence.request = replace(sequence.request, eos_token_ids=frozenset())
        return num


@planted(Promise.P17, Cause.STREAM, "vllm-project/vllm#26027")
class OnlyTheLastTokenOfAStepIsStreamed(RaggedPagedEngine):
    """Of several tokens of a step, `step` returns the last one alone."""

    def step(self) -> list[TokenEvent]:
        return list({event.request_id: event for event in super().step()}.values())


@planted(Promise.P17, Cause.SCHEDULING, "m87-labs/kestrel#114")
class DraftsAreNotCountedInTheBudget(PagedScheduler):
    """A step feeds as many drafts as it likes, beyond `max_num_batched_tokens`."""

    def room_for_drafts(self, plan: SchedulerOutput, most: int) -> list[int]:
        config = self._config
        self._config = replace(config, max_num_batched_tokens=1 << 20)
        room = super().room_for_drafts(plan, most)
        self._config = config
        return room


class _Choosing(RaggedPagedEngine):
    def _verifying(self, sequence: Sequence, logits: Tensor) -> list[Choice]:
        has_parameters = sequence.request.sampling is not None and sequence.matcher is None
        if len(logits) == 1 or not has_parameters:
            return super()._verifying(sequence, logits)
        return self._choosing(sequence, logits)

    def _choosing(self, sequence: Sequence, logits: Tensor) -> list[Choice]:
        """Returns what is chosen where a request with parameters has drafts."""
        raise NotImplementedError


@planted(Promise.P19, Cause.SPECULATION, "snowflakedb/ArcticInference#161")
class DraftedRequestsLoseTheirParameters(_Choosing):
    """Requests with parameters of their own are drafted as well, and verified without them."""

    def _choosing(self, sequence: Sequence, logits: Tensor) -> list[Choice]:  # noqa: ARG002
        return [*map(Choice, logits.argmax(dim=-1).tolist())]


@planted(Promise.P19, Cause.SPECULATION, "sgl-project/sglang#28242")
class PenaltiesForgetTheDraftsOfAStep(_Choosing):
    """Tokens behind a draft are penalized as they were before the step."""

    def _choosing(self, sequence: Sequence, logits: Tensor) -> list[Choice]:
        before = sequence.output_token_ids[: -len(logits) + 1]
        row = SampledRow(sequence.request, before)
        return self._sampler.choose(logits, [row] * len(logits))


@planted(Promise.P17, Cause.SPECULATION, "vllm-project/vllm-ascend#2280", shows_on="llama-hash")
class DraftsFromNgramsAreTrusted(Speculator):
    """What n-grams find is kept whatever the model would have chosen; a draft model's is verified."""

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        if isinstance(self.drafter, NgramDrafter):
            return len(choices)
        return super().num_right(sequence, drafts, choices)


@planted(Promise.P17, Cause.STALE, "raullenchai/Rapid-MLX#2742")
class DraftsAreCachedBeforeTheyAreVerified(Speculator):
    """Blocks are offered with the drafts in them, and keep that name when these are rejected."""

    def drafted(self, plan: SchedulerOutput, scheduler: PagedScheduler) -> SchedulerOutput:
        plan = super().drafted(plan, scheduler)
        for sequence, num_new in plan.scheduled:
            sequence.num_computed_tokens += num_new
            scheduler.blocks.publish(sequence)
            sequence.num_computed_tokens -= num_new
        return plan
