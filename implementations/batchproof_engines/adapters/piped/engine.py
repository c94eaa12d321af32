"""Engines that live in a program at the other end of a pipe."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFactory,
    FinishReason,
    Request,
    StepRecord,
    TokenEvent,
    TokenLogprobs,
    duplicate_id,
    fields_of,
)
from batchproof.errors import UnsupportedModelError
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.piped import messages
from batchproof_engines.adapters.piped.process import Process, Program
from batchproof_engines.completions import with_refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE_LIMIT_S = 30.0  # the suite limits building and serving, but not closing


def factory_of(program: Program) -> EngineFactory:
    def piped(model: PreTrainedModel, config: EngineConfig) -> Engine:
        """Builds an engine; raises `UnsupportedModelError` if the program refuses the model."""
        import torch  # noqa: PLC0415 - naming a program loads none, and a model has loaded it

        process, number = program.process(), next(program.engine_numbers)
        while process.abandoned:
            _close(process, process.abandoned.pop())
        build: dict[str, object] = {
            "op": "build",
            "engine": number,
            "model": str(saved(model)),
            "dtype": str(model.dtype).removeprefix("torch."),
            "config": asdict(config),
            "threads": torch.get_num_threads(),
        }
        if Capability.SPECULATION in process.hello.capabilities:
            draft = config.draft_model(model)
            build["draft"] = None if draft is None else str(saved(draft))
        built = process.ask(build)
        if (why := built.unsupported) is not None:
            raise UnsupportedModelError(
                f"engine {process.hello.name!r} cannot serve {type(model).__name__}: {why}"
            )
        return PipedEngine(process, number, built.lacks)

    return piped


class PipedEngine:
    """An engine in a running program; `number` identifies it in the messages. A method exchanges one.

    Every method raises `RuntimeError` if the program or its engine fails.
    """

    def __init__(self, process: Process, number: int, lacks: Sequence[str] = ()) -> None:
        self._process = process
        self._number = number
        # An engine that is dropped without `close` cannot send a message at once: another one may be
        # waiting for an answer. The next build closes it.
        self._finalizer = weakref.finalize(self, process.abandoned.append, number)
        self._finalizer.atexit = False
        hello = process.hello
        declared = frozenset(map(Capability, hello.capabilities)) - {*map(Capability, lacks)}
        self.capabilities = declared | {Capability.CLOSING}
        self.trace: list[StepRecord] = []
        self.counters = Counter[str]()
        self.sampling_limits = hello.sampling_limits
        taken = fields_of(self.capabilities)
        self.sampling_fields = taken if hello.sampling_fields is None else hello.sampling_fields
        self.block_size_multiple = hello.block_size_multiple
        self.grammar_kinds, self.grammar_ends = hello.grammar_kinds, hello.grammar_ends
        self.release = f"{hello.name} {hello.version}"
        self.notes = hello.notes
        self._refused: list[TokenEvent] = []  # events of requests that the program is not asked

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        refusals = [self._refusal(request) for request in requests]
        if refusals.count(None) == len(requests):  # the suite judges the number of completions
            return self._served(requests)
        return with_refused(requests, refusals, self._served)

    def _served(self, requests: Sequence[Request]) -> list[Completion]:
        answer = self._ask("generate", requests=list(map(request_to_json, requests)))
        self._note(answer)
        return completions_of(answer)

    @property
    def has_unfinished(self) -> bool:
        if self._refused or Capability.STEPPING not in self.capabilities:
            return bool(self._refused)
        return bool(self._ask("has_unfinished").has_unfinished)

    def add(self, request: Request) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._refused.append(TokenEvent.refused(request.request_id, refusal))
        elif self._ask("add", request=request_to_json(request)).live:
            raise ValueError(duplicate_id(request.request_id))

    def step(self) -> list[TokenEvent]:
        refused, self._refused = self._refused, []
        if refused:
            return refused
        answer = self._ask("step")
        self._note(answer)
        return events_of(answer)

    def abort(self, request_id: str) -> None:
        self._ask("abort", request_id=request_id)

    def load_adapter(self, name: str, path: str) -> None:
        self._ask("load_adapter", name=name, path=path)

    def unload_adapter(self, name: str) -> None:
        self._ask("unload_adapter", name=name)

    def update_weights(self, model: PreTrainedModel, names: Sequence[str] | None = None) -> None:
        named = None if names is None else list(names)
        self._ask("update_weights", model=str(saved(model)), names=named)

    def close(self) -> None:
        """Closes the engine; the process stays for the next one."""
        if self._finalizer.detach() is not None and self._process.failure is None:
            _close(self._process, self._number)

    def _refusal(self, request: Request) -> str | None:
        """Returns which field of the request the program lacks, so that it is not asked; else None."""
        if request.grammar is not None and Capability.STRUCTURED not in self.capabilities:
            return f"grammar is {request.grammar}, but this engine takes none"
        return None if request.sampling is None else request.sampling.beyond(self.sampling_fields)

    def _note(self, answer: messages.Generated | messages.Stepped) -> None:
        self.trace += answer.trace
        self.counters.update(answer.counters)

    def _ask(self, op: str, **fields: object) -> Any:
        return self._process.ask({"op": op, "engine": self._number, **fields})

    pause = partialmethod(_ask, "pause")
    resume = partialmethod(_ask, "resume")
    sleep = partialmethod(_ask, "sleep")
    wake = partialmethod(_ask, "wake")
    clear_cache = partialmethod(_ask, "clear_cache")


def _close(process: Process, number: int) -> None:
    process.ask({"op": "close", "engine": number}, CLOSE_LIMIT_S)


def request_to_json(request: Request) -> dict[str, Any]:
    """Returns the message of a request; ids in sets are ascending, so that equal requests make equal
    lines. `sampling` has the parameters that differ from their defaults; it, `adapter` and `grammar`
    are there where the request has them."""
    message: dict[str, Any] = {
        "request_id": request.request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_new_tokens": request.max_new_tokens,
        "eos_token_ids": sorted(request.eos_token_ids),
    }
    changed = {} if request.sampling is None else plain_values(request.sampling)
    if changed:
        message["sampling"] = changed
    if request.adapter is not None:
        message["adapter"] = request.adapter
    if request.grammar is not None:
        message["grammar"] = asdict(request.grammar)
    return message


def completions_of(answer: messages.Generated) -> list[Completion]:
    return [
        Completion(
            each.request_id,
            each.token_ids,
            FinishReason(each.finish_reason),
            each.error,
            logprobs=_each(each.logprobs),
            prompt_logprobs=_each(each.prompt_logprobs),
        )
        for each in answer.completions
    ]


def events_of(answer: messages.Stepped) -> list[TokenEvent]:
    return [
        TokenEvent(
            each.request_id,
            each.token_id,
            None if each.finish_reason is None else FinishReason(each.finish_reason),
            each.error,
            _logprobs(each.logprobs),
        )
        for each in answer.events
    ]


def _each(given: Iterable[messages.Logprobs | None] | None) -> Any:
    return None if given is None else tuple(map(_logprobs, given))


def _logprobs(given: messages.Logprobs | None) -> TokenLogprobs | None:
    return None if given is None else TokenLogprobs(given.logprob, given.rank, given.top)
