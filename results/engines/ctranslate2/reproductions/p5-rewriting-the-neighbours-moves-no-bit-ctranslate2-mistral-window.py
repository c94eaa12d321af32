"""P5 isolation is broken, on ctranslate2: shown without the test suite.

finding:   request 'r1' is answered differently when its neighbours are rewritten
           before: [99] (length)
           after:  [223] (length)
promise:   a request's answer does not depend on its neighbours
engine:    ctranslate2
model:     mistral-window (float32, cpu), beside this file
found by:  tests/conformance/test_isolation.py::test_rewriting_the_neighbours_moves_no_bit[ctranslate2-mistral-window]

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
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.api import Completion, EngineConfig, EngineFactory, Request
from implementations.adapters.released import ctranslate2

FINDING = "request 'r1' is answered differently when its neighbours are rewritten"
TIME_LIMIT_S = 120
CONFIG = EngineConfig(max_num_seqs=2, block_size=2)
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("r0", (198, 216, 21, 133, 249, 208, 156, 245), 1),
        Request("r1", (197, 215, 20, 132, 248, 207, 155, 244), 1),
    ],
]
OTHER_CALLS = [
    [
        Request("r0", (197, 215, 20, 132, 248, 207, 155, 244), 1),
        Request("r1", (197, 215, 20, 132, 248, 207, 155, 244), 1),
    ],
]
REQUEST_ID = "r1"
ALLOWED = 0.0


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


def centred(logits: Tensor) -> Tensor:
    """A constant added to all logits changes nothing, so it is taken away."""
    logits = logits.detach().cpu().double()
    return logits - logits.mean(dim=-1, keepdim=True)


def wrong_differences(
    first: Completion, second: Completion, cut: int | None, bound: float
) -> Iterator[str]:
    """Two answers that must be one and the same: token for token and, at bound 0, bit for bit."""
    if first.token_ids[:cut] != second.token_ids[:cut] or (
        cut is None and first.finish_reason != second.finish_reason
    ):
        yield f"{told(first)} is not {told(second)}"
    elif first.logits is not None and second.logits is not None:
        a, b = first.logits[:cut], second.logits[:cut]
        moved = (centred(a) - centred(b)).abs().amax(dim=-1)
        if not torch.equal(a, b) and not bool((moved <= bound).all()):
            yield f"the logits of {first.request_id!r} differ, step by step, by {moved.tolist()}"


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


def answer(model: PreTrainedModel, calls: Sequence[Any]) -> Completion:
    """Of one request in the last of the calls."""
    engine = factory()(model, CONFIG)
    for requests in calls:
        completions = list(engine.generate(requests))
    return next(each for each in completions if each.request_id == REQUEST_ID)


def look(model: PreTrainedModel) -> list[str]:
    """What is wrong; nothing once the engine is repaired."""
    first, second = answer(model, CALLS), answer(model, OTHER_CALLS)
    wrong: list[str] = list(wrong_differences(first, second, None, ALLOWED))
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
