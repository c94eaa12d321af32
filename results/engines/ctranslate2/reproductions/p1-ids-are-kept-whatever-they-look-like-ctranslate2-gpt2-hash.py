"""P1 parity is broken, on ctranslate2: shown without the test suite.

finding:   request ' ' step 0: got token 215, but should be 225
           got:       [215]
           should be: [225]
           margin of the right token 3.82; rounding explains 8.2e-05 (2 kappa E; kappa 8)
promise:   token_ids equal per-prompt greedy generation, token for token
engine:    ctranslate2
model:     gpt2-hash (float32, cpu), beside this file
found by:  tests/conformance/test_order.py::test_ids_are_kept_whatever_they_look_like[ctranslate2-gpt2-hash]

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

FINDING = "request ' ' step 0: got token 215, but should be 225"
TIME_LIMIT_S = 60
CONFIG = EngineConfig(max_num_seqs=2)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("", (197,), 1),
        Request(" ", (197, 215), 1),
    ],
]
EXPECTED = [
    Completion("", (136,), FinishReason.LENGTH),
    Completion(" ", (225,), FinishReason.LENGTH),
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
