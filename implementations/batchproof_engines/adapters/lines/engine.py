"""Engines that live in a program at the other end of a pipe."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFactory,
    Request,
    TokenEvent,
    duplicate_id,
)
from batchproof.errors import UnsupportedModelError
from batchproof_engines.adapters.checkpoint import saved
from batchproof_engines.adapters.lines import messages
from batchproof_engines.adapters.lines.messages import Answer
from batchproof_engines.adapters.lines.program import Program, Running

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE_LIMIT_S = 30.0  # the suite's own limits are for building and for work

T = TypeVar("T")


def piped_factory(program: Program) -> EngineFactory:
    """Builds engines in the program's process."""

    def piped(model: PreTrainedModel, config: EngineConfig) -> Engine:
        """Raises `UnsupportedModelError` if the program says so."""
        running, number = program.running(), next(program.engine_numbers)
        while running.process.forgotten:
            _close(running, running.process.forgotten.pop())
        build = {
            "op": "build",
            "engine": number,
            "model": str(saved(model)),
            "dtype": str(model.dtype).removeprefix("torch."),
            "config": messages.config_to_json(config),
        }
        refusal = running.process.ask(build, messages.read_build)
        if refusal is not None:
            raise UnsupportedModelError(
                f"engine {running.hello.name!r} cannot serve {type(model).__name__}: {refusal}"
            )
        return (SteppingPipedEngine if running.can_step else PipedEngine)(running, number)

    return piped


class PipedEngine:
    """`number`: its name in the messages."""

    capabilities = frozenset({Capability.CLOSING})

    def __init__(self, running: Running, number: int) -> None:
        self._running = running
        self._number = number
        # One that is dropped without `close` cannot ask there and then: another may be waiting.
        self._forgotten = weakref.finalize(self, running.process.forgotten.append, number)
        self._forgotten.atexit = False

    @property
    def release(self) -> str:
        """In its own words, for a report."""
        return f"{self._running.hello.name} {self._running.hello.version}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Its conventions and settings, for a report."""
        return self._running.hello.notes

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Raises `RuntimeError` if the program fails, or says that its engine did."""
        asked = [messages.request_to_json(request) for request in requests]
        return self._ask("generate", messages.read_completions, requests=asked)

    def close(self) -> None:
        """The process stays, for the next engine."""
        if self._forgotten.detach() is not None and self._running.process.failure is None:
            _close(self._running, self._number)

    def _ask(self, op: str, read: Callable[[Answer], T], **fields: object) -> T:
        return self._running.process.ask({"op": op, "engine": self._number, **fields}, read)


class SteppingPipedEngine(PipedEngine):
    """Each method is one question."""

    capabilities = PipedEngine.capabilities | {Capability.STEPPING}

    @property
    def has_unfinished(self) -> bool:
        return self._ask("has_unfinished", messages.read_has_unfinished)

    def add(self, request: Request) -> None:
        if self._ask("add", messages.read_add, request=messages.request_to_json(request)):
            raise ValueError(duplicate_id(request.request_id))

    def step(self) -> list[TokenEvent]:
        return self._ask("step", messages.read_events)

    def abort(self, request_id: str) -> None:
        self._ask("abort", messages.read_nothing, request_id=request_id)


def _close(running: Running, number: int) -> None:
    running.process.ask({"op": "close", "engine": number}, messages.read_nothing, CLOSE_LIMIT_S)
