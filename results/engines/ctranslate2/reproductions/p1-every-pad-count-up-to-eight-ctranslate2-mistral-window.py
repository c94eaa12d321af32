"""P1 parity is broken, on ctranslate2: shown without the test suite.

finding:   request 'r1' step 0: got token 58, but should be 240
           got:       [58, 239]
           should be: [240, 159]
           margin of the right token 0.428; rounding explains 0.00013 (2 kappa E; kappa 8)
           case every-pad-count-up-to-eight (cases/P01-parity.yaml:29): Fully masked pad rows went
           wrong for certain pad counts only, one padded length in 32. The longest prompt has 33
           tokens here, and pads run from 1 to 8.
           https://github.com/huggingface/transformers/issues/47651
promise:   token_ids equal per-prompt greedy generation, token for token
engine:    ctranslate2
model:     mistral-window (float32, cpu), beside this file
found by:  tests/conformance/test_cases.py::test_curated_case_keeps_parity[ctranslate2-mistral-window-every-pad-count-up-to-eight]

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.api import Completion, EngineConfig, EngineFactory, FinishReason, Request
from implementations.adapters.released import ctranslate2

FINDING = "request 'r1' step 0: got token 58, but should be 240"
TIME_LIMIT_S = 60
CONFIG = EngineConfig(max_num_seqs=9)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("r0", (
            85, 119, 141, 245, 95, 164, 246, 227, 144, 36, 154, 211, 158, 254, 26, 218, 143, 163,
            125, 60, 28, 163, 145, 109, 33, 187, 63, 164, 124, 139, 163, 3, 181,
        ), 2),
        Request("r1", (
            39, 109, 74, 155, 121, 254, 12, 19, 51, 166, 169, 29, 240, 189, 0, 64, 4, 248,
            103, 147, 103, 228, 41, 171, 61, 18, 57, 81, 224, 10, 220, 25,
        ), 2),
        Request("r2", (
            6, 240, 57, 201, 72, 22, 71, 57, 118, 71, 75, 16, 31, 69, 118, 229, 211, 104,
            47, 60, 10, 206, 174, 101, 105, 169, 200, 186, 126, 107, 111,
        ), 2),
        Request("r3", (
            148, 15, 107, 131, 24, 203, 192, 68, 41, 236, 3, 124, 13, 37, 81, 205, 178, 34,
            205, 12, 127, 143, 219, 48, 142, 57, 253, 158, 66, 158,
        ), 2),
        Request("r4", (
            38, 177, 147, 44, 176, 201, 212, 9, 16, 53, 227, 115, 178, 43, 254, 168, 214, 102,
            228, 87, 112, 222, 208, 100, 216, 152, 142, 112, 210,
        ), 2),
        Request("r5", (
            57, 66, 91, 115, 67, 237, 213, 107, 109, 73, 200, 83, 67, 96, 103, 14, 208, 122,
            35, 48, 215, 161, 66, 90, 138, 119, 229, 67,
        ), 2),
        Request("r6", (
            245, 141, 146, 100, 37, 33, 130, 170, 129, 190, 206, 93, 126, 122, 251, 36, 40, 217,
            213, 26, 225, 179, 6, 244, 129, 70, 172,
        ), 2),
        Request("r7", (
            103, 105, 221, 29, 65, 244, 21, 87, 219, 124, 209, 103, 14, 113, 73, 66, 110, 247,
            199, 186, 124, 15, 15, 150, 63, 22,
        ), 2),
        Request("r8", (
            193, 7, 109, 156, 242, 21, 130, 17, 156, 217, 49, 63, 100, 161, 92, 183, 240, 53,
            50, 182, 212, 180, 96, 82, 235,
        ), 2),
    ],
]
EXPECTED = [
    Completion("r0", (182, 13), FinishReason.LENGTH),
    Completion("r1", (240, 159), FinishReason.LENGTH),
    Completion("r2", (38, 252), FinishReason.LENGTH),
    Completion("r3", (201, 89), FinishReason.LENGTH),
    Completion("r4", (166, 207), FinishReason.LENGTH),
    Completion("r5", (117, 24), FinishReason.LENGTH),
    Completion("r6", (188, 207), FinishReason.LENGTH),
    Completion("r7", (226, 104), FinishReason.LENGTH),
    Completion("r8", (249, 40), FinishReason.LENGTH),
]


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
    path = Path(__file__).parent / "models" / "mistral-window-float32"
    if not path.exists():
        make = "python -m harness checkpoint mistral-window --dtype=float32"
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
        return ctranslate2
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
    for requests in CALLS:
        completions = list(engine.generate(requests))
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
