"""The ragged engine with a scheduling delay: it learns of an EOS a step after the EOS was sampled.

    step s      the EOS is sampled, but not read
    step s + 1  a surplus row is fed, and its token is dropped; then the EOS is read, the sequence
                finishes, and the next step fills its slot

An end at the cap is known beforehand, so it is never late. To the user a request is live until its EOS
has been read: that is when the event comes. No device is kept busy here; the module shows to the suite
what an engine that overlaps scheduling with computation does (an oddity), and what such an engine may
get wrong (faults). `HoldingEngine` reads all tokens in time, and delivers their events late.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import (
    CHOOSING,
    Capability,
    Completion,
    FinishReason,
    Request,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence


class DelayedSequence(Sequence):
    """A sequence that keeps running past its EOS until the EOS is read."""

    end: int | None = None  # its length, prompt and EOS included, once the EOS is sampled

    def append(self, token_id: int) -> None:
        """Appends the next token; an EOS is remembered in `end`, but does not finish the sequence."""
        if self.end is not None:
            self.token_ids.append(token_id)  # surplus
            return
        super().append(token_id)
        is_short = len(self.output_token_ids) < self.request.max_new_tokens
        if is_short and self.finish_reason is FinishReason.STOP:
            self.end, self.finish_reason = len(self.token_ids), None


class DelayedScheduler(Scheduler):
    """Reads each EOS a step after it was sampled."""

    sequence_class = DelayedSequence

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the outcome of a step; sequences whose EOS is now read finish in it."""
        due = self._unread()
        for seq in due:
            seq.finish_reason = FinishReason.STOP
        # A sequence may have been preempted before its EOS was read.
        self.waiting = deque(seq for seq in self.waiting if seq.finish_reason is None)
        events, record = super().update(plan, token_ids)
        silent = {seq.request_id for seq in (*due, *self._unread())}
        delivered = [event for event in events if event.request_id not in silent]
        delivered += [event for seq in due for event in self._read(seq)]
        finished = dict.fromkeys((*record.finished, *(seq.request_id for seq in due)))
        return delivered, replace(record, finished=tuple(finished))

    def preempt_all(self) -> None:
        """Takes all out but those that have ended, which are never admitted again."""
        ended = [seq for seq in self._unread() if seq in self.running]
        self.running = [seq for seq in self.running if seq not in ended]
        super().preempt_all()
        self.running.extend(ended)

    def _unread(self) -> list[DelayedSequence]:
        """Returns the sequences whose EOS was sampled but not read."""
        live = (seq for seq in (*self.running, *self.waiting) if isinstance(seq, DelayedSequence))
        return [seq for seq in live if seq.end is not None]

    def _read(self, sequence: DelayedSequence) -> list[TokenEvent]:
        """Drops what was produced after the EOS and returns the event of the EOS."""
        del sequence.token_ids[sequence.end :]
        return [TokenEvent(sequence.request_id, sequence.token_ids[-1], sequence.finish_reason)]


class DelayedEngine(RaggedEngine):
    """Declares a scheduling delay of one step, and keeps to it."""

    scheduler_class = DelayedScheduler
    scheduling_delay = 1
    capabilities = (
        RaggedEngine.capabilities - CHOOSING - {Capability.STRUCTURED}
    )  # need the newest token

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        return super()._completion(sequence, logits[: len(sequence.output_token_ids)])


class HoldingEngine(RaggedEngine):
    """Returns the events of the step before; to the user a request whose end is held back is still
    live."""

    _held: tuple[TokenEvent, ...] = ()

    def step(self) -> list[TokenEvent]:
        return self._due(super().step())

    def _due(self, new: list[TokenEvent]) -> list[TokenEvent]:
        """Holds the new events, and returns those held so far."""
        events, self._held = self._held, tuple(new)
        return list(events)

    @property
    def has_unfinished(self) -> bool:
        return self._is_busy or bool(self._held)

    @property
    def _is_busy(self) -> bool:
        return super().has_unfinished

    def add(self, request: Request) -> None:
        """Queues a request. Raises `ValueError` if its id is live, also by a token held back."""
        if self._held_tokens(request.request_id):
            raise ValueError(duplicate_id(request.request_id))
        super().add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request, and withdraws its tokens that are held back."""
        withdrawn = self._held_tokens(request_id)
        self._held = tuple(event for event in self._held if event not in withdrawn)
        if withdrawn and not self._scheduler.is_live(request_id):
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))
        super().abort(request_id)

    def _held_tokens(self, request_id: str) -> list[TokenEvent]:
        return [e for e in self._held if e.request_id == request_id and e.token_id is not None]
