"""Unusual ways to follow a grammar: by a bias, ahead of the model, and late."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from batchproof.api import Capability, StepRecord, TokenEvent
from batchproof_engines.odd.admission import AtWill
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import SampledRow, Sampler


@odd
class GrammarsAreLargeBiases(Sampler):
    """What a grammar does not allow is 1e30 less likely, and never -inf."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        values = super().processed(logits, row._replace(matcher=None))
        if row.matcher is not None:
            values[~row.matcher.allowed(row.output_token_ids)] -= 1e30
        return values


@odd
class ForcedTokensAreNotSampled(Scheduler):
    """A token that a grammar allows alone is taken without a pass of the model: several of them may
    come in one step. One whose logprobs are asked for is not."""

    lacks: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.TRACING, Capability.SCHEDULING, Capability.LOGITS}
    )

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        sampled = {row.request_id for row in plan.rows if row.is_sampled}
        for sequence in self.running:
            if sequence.request_id in sampled:
                events += self._forced(sequence)
        over = [each.request_id for each in self.running if each.finish_reason]
        self.running = [each for each in self.running if not each.finish_reason]
        return events, replace(record, finished=(*record.finished, *over))

    def _forced(self, sequence: Sequence) -> Iterator[TokenEvent]:
        asked = sequence.request.sampling
        if asked is not None and asked.logprobs is not None:
            return
        while sequence.matcher is not None and sequence.finish_reason is None:
            allowed = sequence.matcher.allowed(sequence.output_token_ids).nonzero()[:, 0].tolist()
            if len(allowed) != 1:
                return
            sequence.append(allowed[0])
            yield TokenEvent(sequence.request_id, allowed[0], sequence.finish_reason)


@odd
class GrammarsCompileForAStep(AtWill):
    """A request with a grammar waits a step before it is admitted, and those behind it wait as well."""

    _compiled: frozenset[int] = frozenset()

    def _admit_first(self, plan: dict[Sequence, int]) -> bool:
        sequence = self.waiting[0]
        is_new = sequence.matcher is not None and id(sequence.matcher) not in self._compiled
        self._compiled |= {id(sequence.matcher)}
        return not is_new and super()._admit_first(plan)
