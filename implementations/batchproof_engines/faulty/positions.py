"""Tokens at the wrong position, or the wrong token at a position."""

from __future__ import annotations

from itertools import accumulate

from batchproof.api import Limits
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput


@planted(Promise.P7, Cause.POSITION, "antonellof/ferrox#37")
class PositionsRestartInEachChunk(RaggedEngine):
    """Each chunk of a prompt counts its positions from 0 again."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, _ = super()._packed_tokens(plan)
        positions: list[int] = []
        for row in plan.rows:
            start = row.context_len if row.query_len == 1 else 0
            positions += range(start, start + row.query_len)
        return fed, positions


@planted(Promise.P7, Cause.POSITION, "unslothai/unsloth#3699")
class PositionsOfThePackedRow(RaggedEngine):
    """A new prompt's positions count from the start of the packed row, not of its sequence."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        last = Limits.of(self._model, self._config).max_model_len - 1
        end = 0
        for row in plan.rows:
            start, end = end, end + row.query_len
            if row.context_len == 0:
                positions[start:end] = (min(index, last) for index in range(start, end))
        return fed, positions


@planted(Promise.P1, Cause.FEED, "utensils/mold#1690")
class LastPromptTokenFedTwice(RaggedEngine):
    """The first decode is fed the prompt's last token again instead of the first output."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        ends = accumulate(row.query_len for row in plan.rows)
        for (sequence, num_new), row, end in zip(plan.scheduled, plan.rows, ends, strict=True):
            prompt = sequence.request.prompt_token_ids
            if row.context_len == len(prompt):
                fed[end - num_new] = prompt[-1]
        return fed, positions
