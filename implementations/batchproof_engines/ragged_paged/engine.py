"""The ragged engine over a pool of blocks, with drafts.

Keys and values of all sequences lie in one pool for each layer, `(num_slots, heads, head_size)`; slot
`block * block_size + offset` is that of a position. A step reads the contexts of its rows by their
block tables, and writes the new keys by them.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import Capability, EngineConfig, TokenEvent
from batchproof_engines.grammars import LACKING
from batchproof_engines.ragged.engine import RaggedEngine, keys_and_values
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.drafting import Speculator
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.sampler import Choice, SampledRow


class KeyPool:
    """Keys and values by layer and slot."""

    def __init__(self) -> None:
        self.layers: dict[int, list[Tensor]] = {}  # keys and values, each (num_slots, heads, head_size)

    def read(self, layer: int, slots: list[int]) -> list[Tensor]:
        """Returns copies of the keys and values of these slots, each (1, heads, slots, head_size)."""
        return [each[slots].transpose(0, 1)[None] for each in self.layers[layer]]

    def write(self, layer: int, slots: list[int], new: list[Tensor], num_slots: int) -> None:
        """Stores keys and values, each (1, heads, slots, head_size), in a pool that has `num_slots`."""
        rows = [each[0].transpose(0, 1) for each in new]
        pool = self.layers.setdefault(layer, [each[:0] for each in rows])
        for place, each in enumerate(rows):
            if len(pool[place]) < num_slots:
                num_lacking = max(num_slots, 2 * len(pool[place])) - len(pool[place])
                pool[place] = torch.cat([pool[place], each.new_zeros(num_lacking, *each.shape[1:])])
            pool[place][slots] = each


class RaggedPagedEngine(RaggedEngine):
    """Serves requests first come, first served, out of blocks that equal prefixes may share."""

    capabilities = frozenset(Capability) - {Capability.CLOSING, Capability.INVARIANCE} - LACKING
    scheduler_class: type[PagedScheduler] = PagedScheduler
    speculator_class = Speculator
    _scheduler: PagedScheduler

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._pool = KeyPool()
        self._hidden_states = KeyPool()  # one layer, (num_slots, 1, width), for drafts of a head
        self._speculator: Speculator | None = None
        if config.num_speculative_tokens and Capability.SPECULATION in self.capabilities:
            draft = config.draft_model(model)
            self._speculator = self.speculator(draft, config.num_speculative_tokens)

    def speculator(self, draft: PreTrainedModel | None, most: int) -> Speculator:
        """Returns one that makes up to `most` drafts for a row."""
        output = self._model.get_output_embeddings()
        return self.speculator_class(draft, most, output, self.hidden_states)

    def _carry_out(self, plan: SchedulerOutput) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        if self._speculator is None:
            return super()._carry_out(plan)
        return self._settle_drafts(self._speculator, self._speculator.drafted(plan, self._scheduler))

    @torch.inference_mode()
    def _settle_drafts(
        self, speculator: Speculator, plan: SchedulerOutput
    ) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        """Runs a step with drafts; its rows may produce several tokens each."""
        packed = self._packed_logits(plan)
        self._score_prompts(plan, packed)
        ends = accumulate(row.query_len for row in plan.rows)
        verified = [
            packed[end - 1 - row.num_drafted : end].float()
            for row, end in zip(plan.rows, ends, strict=True)
        ]
        sequences = [sequence for sequence, _ in plan.scheduled]
        choices = list(map(self._verifying, sequences, verified))
        tokens = [[choice.token_id for choice in of_row] for of_row in choices]
        kept = speculator.verified(sequences, tokens)
        last = torch.stack([each[num - 1] for each, num in zip(verified, kept, strict=True)])
        last_choices = [each[num - 1] for each, num in zip(choices, kept, strict=True)]
        events, logits = self._settle(_settled(plan, kept), last, last_choices)
        for row, chosen, of_row, num in zip(plan.rows, tokens, verified, kept, strict=True):
            if num > 1:
                name = row.request_id
                logits[name] = of_row[:num]
                place = next(i for i, each in enumerate(events) if each.request_id == name)
                events[place:place] = [TokenEvent(name, token_id) for token_id in chosen[: num - 1]]
        return events, logits

    def clear_cache(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Takes all requests out of their slots, and forgets all prefixes."""
        super().restart()
        self._scheduler.blocks.forget()

    def _verifying(self, sequence: Sequence, logits: Tensor) -> list[Choice]:
        """Returns what is chosen before each draft of a row and behind the last, from logits
        (drafts + 1, vocab). A grammar and penalties follow the drafts: behind one that a grammar does
        not allow it allows nothing."""
        outputs, last = sequence.output_token_ids, len(logits) - 1
        rows = [
            SampledRow(sequence.request, outputs[: len(outputs) - last + place], sequence.matcher)
            for place in range(last + 1)
        ]
        return self._sampler.choose(logits, rows)

    @property
    def num_slots(self) -> int:
        return self._scheduler.blocks.num_blocks * self._config.block_size

    def slots(self, table: list[int], positions: Iterable[int]) -> list[int]:
        """Returns where the keys of these positions lie."""
        size = self._config.block_size
        return [table[each // size] * size + each % size for each in positions]

    def slots_of(self, request_id: str, start: int, stop: int) -> list[int]:
        """Returns where the keys of a request from one position to another lie."""
        return self.slots(self._scheduler.blocks.tables[request_id].blocks, range(start, stop))

    def hidden_states(self, sequence: Sequence) -> Tensor:
        """Returns the model's last hidden states (1, n, width) of all tokens of a sequence but the
        newest, which is not fed yet."""
        slots = self.slots_of(sequence.request_id, 0, len(sequence.token_ids) - 1)
        return self._hidden_states.read(0, slots)[0][0]

    def _logits(self, plan: SchedulerOutput, **fed: Any) -> Tensor:
        if self._speculator is None or not self._speculator.reads_hidden_states:
            return super()._logits(plan, **fed)
        seen: list[Tensor] = []  # of the output head, which is fed the last hidden states
        output = self._model.get_output_embeddings()
        hook = output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            logits = super()._logits(plan, **fed)
        finally:
            hook.remove()  # the model is lent
        self.keep_hidden_states(plan, seen[0])
        return logits

    def keep_hidden_states(self, plan: SchedulerOutput, states: Tensor) -> None:
        """Stores the last hidden states (1, total_q, width) of the tokens of a step."""
        self._hidden_states.write(0, self._fed_slots(plan), [states[:, None]], self.num_slots)

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        of_rows = (self.slots_of(row.request_id, 0, row.context_len) for row in plan.rows)
        slots = [slot for each in of_rows for slot in each]
        if not slots:
            return DynamicCache()
        return DynamicCache([tuple(self._pool.read(layer, slots)) for layer in self._pool.layers])

    def _fed_slots(self, plan: SchedulerOutput) -> list[int]:
        """Returns where the keys of a step's tokens go, row after row."""
        return [
            slot
            for row in plan.rows
            for slot in self.slots_of(row.request_id, row.context_len, row.context_len + row.query_len)
        ]

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        slots = self._fed_slots(plan)
        for index, layer in enumerate(cache.layers):
            new = [each[:, :, -len(slots) :] for each in keys_and_values(layer)]
            self._pool.write(index, slots, new, self.num_slots)


def _settled(plan: SchedulerOutput, kept: list[int]) -> SchedulerOutput:
    """Returns the plan of a step with drafts as it turned out: what each row computes for good."""
    triples = list(zip(plan.scheduled, plan.rows, kept, strict=True))
    scheduled = tuple(
        (sequence, num_new - row.num_drafted + num - 1) for (sequence, num_new), row, num in triples
    )
    rows = tuple(replace(row, num_accepted=num - 1) for _, row, num in triples)
    return replace(plan, scheduled=scheduled, rows=rows)
