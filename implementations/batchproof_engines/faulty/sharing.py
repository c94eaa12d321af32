"""State that all engines of a process share, and should not."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput


@planted(Promise.P15, Cause.SIDE_EFFECT, "1CatAI/1Cat-vLLM#406")
class TokenBufferOfAllEngines(RaggedEngine):
    """Decodes are fed from a buffer by id that belongs to the class, so two live engines mix their
    tokens."""

    _chosen: ClassVar[dict[str, int]] = {}

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        ends = accumulate(row.query_len for row in plan.rows)
        for (sequence, num_new), row, end in zip(plan.scheduled, plan.rows, ends, strict=True):
            if num_new == 1 and row.is_sampled and sequence.output_token_ids:
                fed[end - 1] = self._chosen[row.request_id]
        return fed, positions

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        events, logits = super()._run_step()
        tokens = {each.request_id: each.token_id for each in events}
        self._chosen.update({key: token for key, token in tokens.items() if token is not None})
        return events, logits


@planted(Promise.P6, Cause.STALE, "GeeeekExplorer/nano-vllm#191")
class WindowOfTheFirstModel(RaggedEngine):
    """The sliding window is looked up once per process: later models are served with the first
    one's."""

    _known: ClassVar[list[int | None]] = []

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._known.append(self._window)
        self._window = self._known[0]
