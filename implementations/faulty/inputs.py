"""Bad requests that are let in, lost, or taken out on others."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from harness.api import Completion, Request
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged import RaggedEngine
from implementations.ragged_scheduler import Scheduler, Sequence


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#7632")
class BadRequestTakesItsNeighboursDown(RaggedEngine):
    """One bad request in a call, and all of the call are refused."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        refusals = filter(None, map(self._scheduler.refusal, requests))
        refusal = next(refusals, None)
        if refusal is None:
            return super().generate(requests)
        return [Completion.refused(request.request_id, refusal) for request in requests]


@planted(Promise.P12, Cause.INPUT, "ollama/ollama#3839")
class PromptCutToTheContext(Scheduler):
    """A prompt too long for the context silently loses its head, and is answered."""

    def refusal(self, request: Request) -> str | None:
        return super().refusal(self._cut(request))

    def add(self, request: Request) -> Sequence:
        return super().add(self._cut(request))

    def _cut(self, request: Request) -> Request:
        surplus = len(request.prompt_token_ids) + request.max_new_tokens - self._limits.max_model_len
        if not 0 < surplus < len(request.prompt_token_ids):
            return request
        return replace(request, prompt_token_ids=request.prompt_token_ids[surplus:])


@planted(Promise.P12, Cause.INPUT, "vllm-project/vllm#10583")
class DuplicateIdOverwrites(RaggedEngine):
    """Requests are kept in a dict by id: of two live ones the later replaces the earlier."""

    def add(self, request: Request) -> None:
        if self._scheduler.abort(request.request_id):
            self._caches.pop(request.request_id, None)
        super().add(request)

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        by_id = {request.request_id: request for request in requests}
        completions = {each.request_id: each for each in super().generate(list(by_id.values()))}
        return [completions[request.request_id] for request in requests]


@planted(Promise.P12, Cause.INPUT, "ray-project/ray#42705")
class RefusalAloneIsNeverDelivered(RaggedEngine):
    """The engine calls itself done while the ERROR event of a bad request still waits to go out."""

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running)
