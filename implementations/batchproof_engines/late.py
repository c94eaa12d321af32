"""The ragged engine as one that reads its tokens late: it learns of an EOS steps after it was sampled.

    step s      the EOS is sampled, and nobody looks
    step s + 1  a surplus row is fed, and what it samples is dropped; then the EOS is read: the
                sequence is done, and the next step fills its slot

An end by the cap is known beforehand, so it is never late. To the user a request is live until its EOS
was read: that is when the event comes. There is no device to keep busy here: it shows to the suite what
an engine with overlap does (an oddity), and what such an engine may get wrong (faults).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import (
    Completion,
    FinishReason,
    StepRecord,
    TokenEvent,
)
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence


class LateSequence(Sequence):
    """Goes on behind its end until somebody reads that."""

    end: int | None = None  # how many tokens it has, prompt and EOS included, once that was sampled
    unread: FinishReason | None = None  # how it has ended, once it has
    num_late: int = 0  # steps since then

    def append(self, token_id: int) -> None:
        if self.end is not None:
            self.token_ids.append(token_id)  # surplus
            return
        super().append(token_id)
        if self.is_unforeseen():
            self.end, self.unread, self.finish_reason = len(self.token_ids), self.finish_reason, None

    def is_unforeseen(self) -> bool:
        """Has its last token ended it before the cap?"""
        is_short = len(self.output_token_ids) < self.request.max_new_tokens
        return is_short and self.finish_reason is FinishReason.STOP


class LateScheduler(Scheduler):
    """Reads each EOS `delay` steps late."""

    sequence_class = LateSequence
    delay = 1

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        late = self._unread()
        for seq in late:
            seq.num_late += 1
        due = [seq for seq in late if seq.num_late == self.delay]
        for seq in due:
            seq.finish_reason = seq.unread
        # One may have been preempted before its EOS was read.
        self.waiting = deque(seq for seq in self.waiting if seq.finish_reason is None)
        events, record = super().update(plan, token_ids)
        silent = {seq.request_id for seq in (*late, *self._unread())}
        told = [event for event in events if event.request_id not in silent]
        told += [event for seq in due for event in self._read(seq)]
        finished = dict.fromkeys((*record.finished, *(seq.request_id for seq in due)))
        return told, replace(record, finished=tuple(finished))

    def _unread(self) -> list[LateSequence]:
        """Those whose EOS was sampled and not read."""
        live = (seq for seq in (*self.running, *self.waiting) if isinstance(seq, LateSequence))
        return [seq for seq in live if seq.end is not None]

    def _read(self, sequence: LateSequence) -> list[TokenEvent]:
        """What came behind its EOS is dropped."""
        del sequence.token_ids[sequence.end :]
        return [TokenEvent(sequence.request_id, sequence.token_ids[-1], sequence.finish_reason)]


class LateEngine(RaggedEngine):
    """Declares a delay of one step, and keeps to it."""

    scheduler_class = LateScheduler
    scheduling_delay = 1

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        return super()._completion(sequence, logits[: len(sequence.output_token_ids)])
