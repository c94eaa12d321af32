"""Unusual arithmetic with the same outcome: other precision, order, attention kernel or amount of
work."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import Capability, Completion, Engine, EngineConfig, Request, RowRecord
from batchproof_engines.copies import in_dtype
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.reference import ReferenceEngine

PAD_ID = "\0pad"  # never visible to a user: it exists during one forward pass only
PAD_TO = 8


@odd
def float64_arithmetic(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """All arithmetic is float64, on a copy of the model; only the logits are returned as float32."""
    return RaggedEngine(in_dtype(model, torch.float64), config)


@odd
class BorrowsTheWorld(RaggedEngine):
    """During a pass it seeds the RNG and switches the model's attention, and then restores both."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        borrowed = self._model.config._attn_implementation
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self._model.set_attn_implementation("eager")
            try:
                return super()._forward(plan)
            finally:
                self._model.set_attn_implementation(borrowed)


@odd
class RowsInReverse(RaggedEngine):
    """The rows of the packed pass stand in reverse order."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        turned = replace(plan, scheduled=plan.scheduled[::-1], rows=plan.rows[::-1])
        return super()._forward(turned).flip(0)


@odd
class ContextsInReverse(RaggedEngine):
    """In a pass the cached keys stand in reverse, the last token of the last row first."""

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        cache = super()._gather(plan)
        return DynamicCache([(each.keys.flip(2), each.values.flip(2)) for each in cache.layers])

    def attention_mask(self, rows: Seq[RowRecord]) -> Tensor:
        return super()._mask(rows, self._window)

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        mask, num_cached = super()._mask(rows, window), sum(row.context_len for row in rows)
        return torch.cat([mask[:, :num_cached].flip(1), mask[:, num_cached:]], dim=1)


@odd
class DummyRowAlong(RaggedEngine):
    """A dummy sequence pads each pass to a multiple of 8 tokens, and its results are dropped."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        num_fed = sum(row.query_len for row in plan.rows)
        num_pads = min(-num_fed % PAD_TO, self._config.max_num_batched_tokens - num_fed)
        if not num_pads:
            return super()._forward(plan)
        dummy = Sequence(Request(PAD_ID, (0,) * num_pads, 1), [0] * num_pads)
        row = RowRecord(PAD_ID, 0, num_pads, is_sampled=False)
        scheduled = (*plan.scheduled, (dummy, num_pads))
        logits = super()._forward(replace(plan, scheduled=scheduled, rows=(*plan.rows, row)))
        del self._caches[PAD_ID]
        return logits[:-1]


def from_the_start(plan: SchedulerOutput) -> SchedulerOutput:
    """Returns a plan that feeds all tokens of the same sequences again."""
    lens = [row.context_len + row.query_len for row in plan.rows]
    pairs = list(zip(plan.rows, lens, strict=True))
    rows = tuple(replace(row, context_len=0, query_len=num) for row, num in pairs)
    scheduled = zip((sequence for sequence, _ in plan.scheduled), lens, strict=True)
    return replace(plan, scheduled=tuple(scheduled), rows=rows)


@odd
class NoKvCache(RaggedEngine):
    """Nothing is cached between steps: each feeds all tokens of each sequence again."""

    # Its trace would report one token where all are fed, so it has none.
    capabilities = frozenset({Capability.STEPPING, Capability.LOGITS})

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        return super()._forward(from_the_start(plan))

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:  # noqa: ARG002
        self._caches.update((row.request_id, DynamicCache()) for row in plan.rows)


@odd
class RemembersAnswers(ReferenceEngine):
    """A request that was answered before is answered from memory."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._known: dict[object, Completion] = {}

    def _complete(self, request: Request) -> Completion:
        if request.sampling is not None:  # another answer, or a new draw
            return super()._complete(request)
        asked = (request.prompt_token_ids, request.max_new_tokens, request.eos_token_ids)
        if asked not in self._known:
            self._known[asked] = super()._complete(request)
        return replace(self._known[asked], request_id=request.request_id)
