"""P12 bad input is broken, on openvino?precision=default: shown without the test suite.

finding:   bad request 'bad' was answered with length and 3 tokens, but should be refused
           max_new_tokens 3, 2 prompt tokens
promise:   a bad request alone gets an error naming value and rule
engine:    openvino?precision=default
model:     llama-hash (float32, cpu), beside this file
found by:  tests/conformance/test_bad_input.py::test_a_bad_request_alone_on_an_idle_engine_is_told[openvino?precision=default-llama-hash-negative token]

Run it where `harness` and the engine can be imported; another engine may take its place:

    PYTHONPATH=path/to/batchproof python THIS.py [pkg.mod:factory]

It exits with 1 if the failure is still there, with 0 if not, with 2 if it cannot tell. A failure that
takes what other engines have left behind in the process is not shown by one engine alone.
"""

from __future__ import annotations

import sys

try:
    import harness.api
except ModuleNotFoundError:
    print("CANNOT TELL: put the checkout of Batchproof, which holds harness/api.py, on PYTHONPATH")
    sys.exit(2)

import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.api import (
    Completion,
    EngineConfig,
    EngineFactory,
    FinishReason,
    Request,
    SteppingEngine,
    TokenEvent,
)
from implementations.adapters.released import openvino

FINDING = "bad request 'bad' was answered with length and 3 tokens, but should be refused"
TIME_LIMIT_S = 60
MAX_STEPS = 121
CONFIG = EngineConfig()
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    ([
        Request("bad", (1, -1), 3),
    ], [0], []),
]
WORDS = [["-1"]]


def serve(
    engine: SteppingEngine,
    requests: Sequence[Request],
    arrivals: Sequence[int],
    aborts: Sequence[tuple[str, int]],
    max_steps: int,
) -> list[tuple[int, TokenEvent]]:
    """The events, each with its step. Arrivals and aborts are the steps before which they happen."""
    events: list[tuple[int, TokenEvent]] = []
    last_action = max([*arrivals, *(step for _, step in aborts)], default=0)
    step = 0
    while step <= last_action or engine.has_unfinished:
        if step == max_steps:
            give_up(f"after {step} steps the engine still has unfinished requests")
        for request, arrival in zip(requests, arrivals, strict=True):
            if arrival == step:
                engine.add(request)
        for request_id, when in aborts:
            if when == step:
                engine.abort(request_id)
        if engine.has_unfinished:
            events += [(step, event) for event in engine.step()]
        step += 1
    return events


def assemble(
    requests: Sequence[Request],
    events: Iterable[tuple[int, TokenEvent]],
    aborts: Iterable[tuple[str, int]],
) -> list[Completion]:
    """Each request's completion from its events."""
    completions = []
    for request in requests:
        own = [event for _, event in events if event.request_id == request.request_id]
        ends = [event for event in own if event.finish_reason]
        was_aborted = any(request_id == request.request_id for request_id, _ in aborts)
        reason = FinishReason.ABORTED if was_aborted else FinishReason.ERROR
        tokens = tuple(event.token_id for event in own if event.token_id is not None)
        error = ends[-1].error if ends else "its events never named a finish reason"
        reason = (ends[-1].finish_reason if ends else None) or reason
        completions.append(Completion(request.request_id, tokens, reason, error))
    return completions


def limit_time(seconds: float) -> None:
    """0: no more. There is no limit where there is no such timer."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda *_: give_up(f"no end within {seconds:g} s"))
        signal.setitimer(signal.ITIMER_REAL, seconds)


def told(completion: Completion | None) -> str:
    if completion is None:
        return "an error"
    tokens, error = list(completion.token_ids), completion.error or ""
    return f"{completion.request_id!r} {tokens} ({completion.finish_reason}) {error}".strip()


def wrong_refusals(completion: Completion, words: Sequence[Sequence[str]]) -> Iterator[str]:
    """An error is wanted that holds a word of each group."""
    message = (completion.error or "").lower()
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        yield f"got {told(completion)}, but should be refused"
    elif not message or not all(any(word.lower() in message for word in group) for group in words):
        yield f"got {told(completion)}, but the error should name {words}"


def load_model() -> PreTrainedModel:
    torch.set_num_threads(1)  # as when it was found
    path = Path(__file__).parent / "models" / "llama-hash-float32"
    if not path.exists():
        make = "python -m harness checkpoint llama-hash --dtype=float32"
        print(f"CANNOT TELL: there is no model yet: {make} {path}")
        sys.exit(2)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.to(device="cpu", dtype=torch.float32).eval().requires_grad_(False)


def from_file(path: str) -> ModuleType:
    """The module in a file, wherever that is."""
    sys.path.append(str(Path(path).parent))  # so that it can import its neighbours
    spec = importlib.util.spec_from_file_location(f"engine_{Path(path).stem}", path)
    assert spec and spec.loader, f"{path} ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def factory() -> EngineFactory:
    """Of the engine it was found on, or of the one named on the command line."""
    if len(sys.argv) == 1:
        return partial(openvino, precision='default')
    module, _, name = sys.argv[1].rpartition(":")
    try:
        is_file = module.endswith(".py")
        return getattr(from_file(module) if is_file else importlib.import_module(module), name)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        print(f"CANNOT TELL: no engine {sys.argv[1]!r}: {error}")
        sys.exit(2)


def give_up(why: str) -> NoReturn:
    """Leave at once: an engine may catch whatever is raised."""
    print(f"CANNOT TELL: {why}", flush=True)
    os._exit(2)


def look(model: PreTrainedModel) -> list[str]:
    """What is wrong; nothing once the engine is repaired."""
    engine = factory()(model, CONFIG)
    for requests, arrivals, aborts in CALLS:
        events = serve(engine, requests, arrivals, aborts, MAX_STEPS)
        completions = assemble(requests, events, aborts)
    for completion in completions:
        print(f"got {told(completion)}")
    wrong: list[str] = list(wrong_refusals(completions[0], WORDS))
    engine.close()
    return wrong


def main() -> int:
    model = load_model()
    limit_time(TIME_LIMIT_S)
    wrong = look(model)
    limit_time(0)
    print("", *wrong, sep="\n")
    print(f"{'REPRODUCED' if wrong else 'not reproduced'}: {FINDING}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
