"""What a client of the engine calls."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof_paged.masking import seen_by
from batchproof_paged.rows import Rows
from batchproof_paged.sequence import Sequence
from batchproof_paged.staging import current
from batchproof_paged.stepping import Landed, Stepper

__all__ = ["Landed", "PagedEngine"]


class PagedEngine(Stepper):
    """The life of a request is told in the package's docstring. `options` are resolved."""

    @property
    def scheduling_delay(self) -> int:
        """Steps between the EOS of a sequence and the one that knows of it."""
        return int(self._overlaps)

    def step(self) -> list[TokenEvent]:
        events = self._run_step()[0]
        undelivered, self._undelivered = self._undelivered, []
        return undelivered + events

    def attention_mask(self, rows: Seq[RowRecord]) -> Tensor:
        with current(self._device):
            return seen_by(
                self._make_backend, rows, self._config.block_size, self._window, self._device
            )

    def add(self, request: Request) -> None:
        if self._is_live(request.request_id):
            raise ValueError(duplicate_id(request.request_id))
        # That one of this id was aborted need not be told, and would be taken for this one's end.
        self._undelivered = [e for e in self._undelivered if e.request_id != request.request_id]
        refusal = self._refusal(request)
        if refusal is None:
            self._scheduler.add(request)
        else:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))

    def _refusal(self, request: Request) -> str | None:
        if self._overlaps and request.sampling is not None:
            return f"sampling is {request.sampling}, but needs the option overlap=false"
        return self._scheduler.refusal(request)

    def _is_live(self, request_id: str) -> bool:
        """From the caller's side: one whose last token or refusal was not delivered yet is."""
        is_refused = any(
            event.request_id == request_id and event.finish_reason is FinishReason.ERROR
            for event in self._undelivered
        )
        return is_refused or self._scheduler.is_live(request_id) or bool(self._flying(request_id))

    def _flying(self, request_id: str) -> list[Sequence]:
        """The sequence of that id whose token is in flight; at most one."""
        rows = self._in_flight.sampled if self._in_flight is not None else Rows.of(())
        pairs = zip(rows.sequences, rows.seq_lens, strict=True)
        return [each for each, end in pairs if each.request_id == request_id and each.awaits(end)]

    def abort(self, request_id: str) -> None:
        was_live = self._scheduler.abort(request_id)
        for sequence in self._flying(request_id):  # done, but its last token has not been delivered
            sequence.finish_reason = FinishReason.ABORTED
            was_live = True
        if was_live:
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    @property
    def has_unfinished(self) -> bool:
        return bool(
            self._scheduler.waiting
            or self._scheduler.running
            or self._undelivered
            or self._in_flight is not None
        )

    @property
    def trace(self) -> Seq[StepRecord]:
        return self._trace

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        self._require_idle()
        answers: list[Sequence | str] = []  # a sequence, or why it was refused
        try:
            for request in requests:
                answers.append(self._refusal(request) or self._scheduler.add(request))
            logits = self._run_all()
        except BaseException:  # whoever asks next shall not meet what is left of it
            self._forget_all()
            raise
        return [
            Completion.refused(request.request_id, answer)
            if isinstance(answer, str)
            else _completion(answer, logits.get(answer.request_id))
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _run_all(self) -> dict[str, list[Tensor]]:
        """Until all is finished. Returns the logits, if any, of each request's tokens."""
        logits: dict[str, list[Tensor]] = {}
        while self.has_unfinished:
            events, of_step = self._run_step()
            for event, row in zip(events, of_step, strict=False):
                logits.setdefault(event.request_id, []).append(row)
        return logits

    def _forget_all(self) -> None:
        for sequence in [*self._scheduler.waiting, *self._scheduler.running]:
            self._scheduler.abort(sequence.request_id)
        self._in_flight = None

    def _require_idle(self) -> None:
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")


def _completion(sequence: Sequence, logits: list[Tensor] | None) -> Completion:
    assert sequence.finish_reason is not None, "generate runs until everything is finished"
    return Completion(
        sequence.request_id,
        tuple(sequence.output_token_ids),
        sequence.finish_reason,
        logits=torch.stack(logits) if logits else None,
        logprobs=tuple(sequence.logprobs) or None,
        prompt_logprobs=tuple(sequence.prompt_logprobs) or None,
    )
