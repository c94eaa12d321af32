"""P10 liveness is broken, on openvino?precision=default: shown without the test suite.

finding:   request 'r0' is a good request, but was answered with error: the library gave the request
           up: GenerationStatus.IGNORED, out of cache
           case victims-that-share-their-blocks (cases/P10-liveness.yaml:96): Pushing out one of two
           requests that share cached blocks freed none of them. It stopped there, and all three
           were given up for want of cache, although each of them fits. Found here in OpenVINO GenAI
           2026.4.1; no thread is known.
promise:   every run ends in a bounded number of steps, whatever stands in the queue
engine:    openvino?precision=default
model:     llama-hash (float32, cpu), beside this file
found by:  tests/conformance/test_cases.py::test_curated_case_keeps_parity[openvino?precision=default-llama-hash-victims-that-share-their-blocks]

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

FINDING = "request 'r0' is a good request, but was answered with error: the library gave the request up: GenerationStatus.IGNORED, out of cache"
TIME_LIMIT_S = 60
MAX_STEPS = 1694
CONFIG = EngineConfig(max_num_batched_tokens=8, block_size=32, num_blocks=5, prefix_caching=True)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    ([
        Request("r0", (231, 238, 231, 97, 94, 243, 95, 48, 228, 155, 72), 55),
        Request("r1", (
            99, 219, 190, 26, 11, 21, 8, 139, 188, 13, 36, 224, 241, 57, 161, 124, 156, 93,
            129, 210, 96, 90, 54, 120, 65, 33, 71, 55, 32, 142, 41, 31, 231, 39, 122, 92,
            10, 77, 101, 186, 40, 124, 6, 72, 1, 79, 253, 4, 241, 11, 24, 225, 220, 49,
            22, 5, 24, 121, 218, 208, 183, 90, 225, 62, 182, 144, 174, 24, 106, 123, 95, 169,
            151, 42, 53, 107, 247, 43, 11, 227, 10, 232, 150, 20, 91, 153, 16, 50, 138, 207,
            96, 191, 43, 82, 197, 5, 78,
        ), 1),
        Request("r2", (
            99, 219, 190, 26, 11, 21, 8, 139, 188, 13, 36, 224, 241, 57, 161, 124, 156, 93,
            129, 210, 96, 90, 54, 120, 65, 33, 71, 55, 32, 142, 41, 31, 231, 39, 122,
        ), 1),
    ], [0, 10, 11], []),
]
EXPECTED = [
    Completion("r0", (
        64, 99, 104, 62, 243, 231, 1, 36, 165, 197, 28, 113, 31, 7, 19, 216, 9, 65,
        168, 255, 202, 240, 121, 178, 123, 180, 153, 183, 72, 21, 126, 245, 87, 1, 85, 68,
        55, 191, 147, 95, 218, 61, 136, 143, 202, 28, 2, 133, 239, 5, 112, 59, 118, 180,
        174,
    ), FinishReason.LENGTH),
    Completion("r1", (194,), FinishReason.LENGTH),
    Completion("r2", (218,), FinishReason.LENGTH),
]


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


def wrong_answers(
    completions: Sequence[Completion], expected: Sequence[Completion | None]
) -> Iterator[str]:
    """None is expected of a bad request: an error."""
    if len(completions) != len(expected):
        yield f"{len(completions)} completions for {len(expected)} requests"
    for got, right in zip(completions, expected, strict=False):
        if right is None:
            if got.finish_reason is not FinishReason.ERROR:
                yield f"got {told(got)}, but should be an error"
        elif told(got) != told(right):
            yield f"got {told(got)}, but should be {told(right)}"


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
    wrong: list[str] = list(wrong_answers(completions, EXPECTED))
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
