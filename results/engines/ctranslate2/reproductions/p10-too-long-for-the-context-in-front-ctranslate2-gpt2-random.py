"""P10 liveness is broken, on ctranslate2: shown without the test suite.

finding:   bad request 'r0' was answered with length and 2 tokens, but should be refused
           max_new_tokens 2, 25 prompt tokens
           case too-long-for-the-context-in-front (cases/P10-liveness.yaml:16): Whether requests
           could share a batch was decided by one whose prompt had just been rejected. The rejected
           one stands first here, in the middle and last.
           https://github.com/ggml-org/llama.cpp/pull/17263
promise:   every run ends in a bounded number of steps, whatever stands in the queue
engine:    ctranslate2
model:     gpt2-random (float32, cpu), beside this file
found by:  tests/conformance/test_cases.py::test_curated_case_keeps_parity[ctranslate2-gpt2-random-too-long-for-the-context-in-front]

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

FINDING = "bad request 'r0' was answered with length and 2 tokens, but should be refused"
TIME_LIMIT_S = 60
CONFIG = EngineConfig(max_num_seqs=2, max_model_len=20)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("r0", (
            193, 7, 109, 156, 242, 21, 130, 17, 156, 217, 49, 63, 100, 161, 92, 183, 240, 53,
            50, 182, 212, 180, 96, 82, 235,
        ), 2),
        Request("r1", (41, 248, 133, 18, 0, 74), 3),
        Request("r2", (
            77, 133, 51, 167, 86, 13, 210, 208, 38, 52, 64, 163, 242, 230, 210, 106, 102, 162,
            171, 168,
        ), 1),
        Request("r3", (106, 5, 18, 80, 122, 8, 28, 75, 188, 122, 59, 173, 238, 182, 143), 3),
        Request("r4", (
            234, 16, 125, 144, 105, 65, 178, 141, 225, 14, 66, 30, 103, 235, 27, 90, 160, 58,
            128, 166, 74, 49, 208, 25, 161, 171, 116, 78, 158, 83, 158, 149, 236, 80, 107, 251,
            221, 32, 87, 104,
        ), 1),
    ],
]
WORDS = [["20"]]


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
    path = Path(__file__).parent / "models" / "gpt2-random-float32"
    if not path.exists():
        make = "python -m harness checkpoint gpt2-random --dtype=float32"
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
