"""One pipeline of the library: its requests, steps and answers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from serving import (
    Completion,
    Event,
    Length,
    Request,
    Stepped,
    completion_of,
    event_of,
    in_calls,
    refused,
)

NGRAM_SIZE = 3  # the longest that a prompt lookup looks for
PARAMETERS = {  # the protocol's name and the library's
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p")),
    "seed": "rng_seed",
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty")),
    "min_tokens": "min_new_tokens",
}
# Not "json_schema": the library lets JSON have any white space, and there is no switch.
GRAMMARS = {"regex": "regex", "ebnf": "grammar"}  # the protocol's name and the library's
REASONS = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}
GIVEN_UP = "the library gave the request up: GenerationStatus.IGNORED, out of cache"
SILENCE = "the library gave no token and no status of it"


class Pipeline(Stepped):
    """An engine; a handle is the library's own."""

    refusals = (RuntimeError, TypeError, ValueError, OverflowError)

    def __init__(
        self,
        make: Callable[..., genai.ContinuousBatchingPipeline],
        length: Length,
        num_drafts: int | None,
        lacks: Sequence[str],
    ) -> None:
        super().__init__()
        self._make, self._pipeline, self.lacks = make, make(), lacks
        self._num_drafts = num_drafts
        self._length = length
        self._numbers: dict[str, int] = {}
        # Held for a step, because dropping a handle stops its request.
        self._aborted: list[genai.GenerationHandle] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, after adding all of them before the first step."""
        handles = [self._submitted(request) for request in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [_completion(request, handle) for request, handle in zip(requests, handles, strict=True)]

    def submit(self, request: Request) -> genai.GenerationHandle:
        refusal = self._length.refusal(request)
        if refusal is not None:
            raise ValueError(refusal)
        number = self._numbers.setdefault(request["request_id"], len(self._numbers))
        return self._pipeline.add_request(number, _prompt(request), self._settings(request))

    def advance(self) -> list[Event]:
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self._aborted.clear()
        events = []
        for request_id, handle in list(self.live.items()):
            events += _news(request_id, handle)
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                del self.live[request_id]
        return events

    def cancel(self, handle: genai.GenerationHandle) -> None:
        handle.cancel()
        self._aborted.append(handle)

    @property
    def has_work(self) -> bool:
        """The library counts an aborted request until its next step."""
        return super().has_work or self._pipeline.has_non_finished_requests()

    def close(self) -> None:
        del self.live, self._aborted, self._pipeline, self._make

    def _submitted(self, request: Request) -> genai.GenerationHandle | Exception:
        try:
            return self.submit(request)
        except self.refusals as error:
            return error

    def _settings(self, request: Request) -> genai.GenerationConfig:
        settings = genai.GenerationConfig()
        settings.max_new_tokens = request["max_new_tokens"]
        ends = {token for token in request["eos_token_ids"] if token >= 0}
        settings.ignore_eos = not ends
        settings.stop_token_ids = ends or {0}
        settings.eos_token_id = min(settings.stop_token_ids)
        if self._num_drafts:
            settings.num_assistant_tokens = self._num_drafts
            settings.max_ngram_size = NGRAM_SIZE
        asked = request.get("sampling", {})
        settings.do_sample = "temperature" in asked
        settings.rng_seed = secrets.randbits(32)
        for name, value in asked.items():
            # Without EOS ids a least length means nothing, and would ban the one that stands for none.
            if name != "min_tokens" or ends or value > request["max_new_tokens"]:
                setattr(settings, PARAMETERS[name] or name, value)
        grammar = request.get("grammar")
        if grammar is not None:
            if not ends or grammar["kind"] not in GRAMMARS:
                raise ValueError(f"{grammar}: without an EOS id, or of a kind not in {[*GRAMMARS]}")
            kind = {GRAMMARS[grammar["kind"]]: grammar["text"]}
            settings.structured_output_config = genai.StructuredOutputConfig(**kind)
        return settings


class Adapted(Pipeline):
    """An engine with adapters, which is not stepped."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._adapters: dict[str, tuple[genai.Adapter, float]] = {}
        self._is_stale = False

    def load_adapter(self, name: str, path: str) -> None:
        config = json.loads(Path(path, "adapter_config.json").read_text(encoding="utf-8"))
        adapter = genai.Adapter(str(Path(path, "adapter_model.safetensors")))
        self._adapters[name] = adapter, config["lora_alpha"] / config["r"]
        self._is_stale = True

    def unload_adapter(self, name: str) -> None:
        self._is_stale |= self._adapters.pop(name, None) is not None

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, with a call of the library for each adapter."""
        if self._is_stale:
            registered = genai.AdapterConfig([*self._adapters.values()])
            self._pipeline = self._make(**({"adapters": registered} if self._adapters else {}))
            self._is_stale = False
        refusals = [self._refusal(request) for request in requests]
        if not self._adapters and not any(refusals):
            return super().generate(requests)
        answers = in_calls(requests, refusals, lambda each: each.get("adapter") or "", self._answers)
        return [_whole(*each) for each in zip(requests, answers, strict=True)]

    def _refusal(self, request: Request) -> str | None:
        name = request.get("adapter")
        if name is not None and name not in self._adapters:
            return f"the adapter {name!r} is not loaded"
        return self._length.refusal(request)

    def _answers(self, requests: Sequence[Request]) -> Sequence[Any]:
        name = requests[0].get("adapter")
        adapters = genai.AdapterConfig([] if name is None else [self._adapters[name]])
        try:
            settings = [self._settings(each) for each in requests]
            for each in settings:
                each.adapters = adapters
            return self._pipeline.generate([_prompt(each) for each in requests], settings)
        except self.refusals as error:
            return [error] * len(requests)


def _whole(request: Request, answer: Any) -> Completion:
    """Returns the completion of a call, where a request without a reason was given up."""
    if isinstance(answer, Exception) or answer.finish_reasons[0] not in REASONS:
        return refused(request, answer if isinstance(answer, Exception) else GIVEN_UP)
    tokens, reason = answer.m_generation_ids[0], REASONS[answer.finish_reasons[0]]
    return completion_of(request, [event_of(request["request_id"], each, reason) for each in tokens])


def _prompt(request: Request) -> ov.Tensor:
    return ov.Tensor(np.array([request["prompt_token_ids"]], dtype=np.int64))


def _completion(request: Request, handle: genai.GenerationHandle | Exception) -> Completion:
    if isinstance(handle, Exception):
        return refused(request, handle)
    events = _news(request["request_id"], handle)
    return completion_of(request, events) if events else refused(request, SILENCE)


def _news(request_id: str, handle: genai.GenerationHandle) -> list[Event]:
    """Returns an event for each token that has not been read yet."""
    events = []
    while handle.can_read():
        for output in handle.read().values():
            events += [event_of(request_id, token) for token in output.generated_ids]
            if events:
                events[-1]["finish_reason"] = REASONS.get(output.finish_reason)
    if handle.get_status() == genai.GenerationStatus.IGNORED:
        events.append(event_of(request_id, None, "error", GIVEN_UP))
    return events
