"""P12 bad input is broken, on ctranslate2?include_prompt_in_result=true: shown without the test suite.

finding:   bad request 'bad' was answered with length and 3 tokens, but should be refused
           max_new_tokens 3, 2 prompt tokens
promise:   a bad request alone gets an error naming value and rule
engine:    ctranslate2?include_prompt_in_result=true
model:     gpt2-hash (float32, cpu), beside this file
found by:  tests/conformance/test_bad_input.py::test_a_bad_request_fails_alone[ctranslate2?include_prompt_in_result=true-gpt2-hash-negative token]

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
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.api import Completion, EngineConfig, EngineFactory, FinishReason, Request
from implementations.adapters.released import ctranslate2

FINDING = "bad request 'bad' was answered with length and 3 tokens, but should be refused"
TIME_LIMIT_S = 60
CONFIG = EngineConfig(max_num_seqs=1, block_size=2)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("bad", (1, -1), 3),
        Request("r0", (197,), 1),
    ],
]
WORDS = [["-1"]]


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
    path = Path(__file__).parent / "models" / "gpt2-hash-float32"
    if not path.exists():
        make = "python -m harness checkpoint gpt2-hash --dtype=float32"
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
        return partial(ctranslate2, include_prompt_in_result=True)
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
