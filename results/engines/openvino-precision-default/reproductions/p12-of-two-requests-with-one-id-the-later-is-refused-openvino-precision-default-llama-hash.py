"""P12 bad input is broken, on openvino?precision=default: shown without the test suite.

finding:   the engine raised RuntimeError: RuntimeError: std::future_error: No associated state
           /work/main/implementations/adapters/lines/engine.py:83 in generate: return
           self._ask("generate", messages.read_completions, requests=asked)
           /work/main/implementations/adapters/lines/engine.py:91 in _ask: return
           self._running.process.ask({"op": op, "engine": self._number, **fields}, read)
           /work/main/implementations/adapters/lines/process.py:93 in ask: raise
           RuntimeError(raised)
promise:   a bad request alone gets an error naming value and rule
engine:    openvino?precision=default
model:     llama-hash (float32, cpu), beside this file
found by:  tests/conformance/test_bad_input.py::test_of_two_requests_with_one_id_the_later_is_refused[openvino?precision=default-llama-hash]

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
import traceback
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from harness.api import EngineConfig, EngineFactory, Request
from implementations.adapters.released import openvino

FINDING = "the engine raised RuntimeError: RuntimeError: std::future_error: No associated state"
TIME_LIMIT_S = 60
CONFIG = EngineConfig()
# One after the other, on one engine; the last is the one that failed.
CALLS = [
    [
        Request("twin", (3, 1, 4), 4),
        Request("other", (1, 5), 3),
        Request("twin", (9, 2), 4),
    ],
]


def limit_time(seconds: float) -> None:
    """0: no more. There is no limit where there is no such timer."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda *_: give_up(f"no end within {seconds:g} s"))
        signal.setitimer(signal.ITIMER_REAL, seconds)


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
    try:
        engine = factory()(model, CONFIG)
        for requests in CALLS:
            completions = list(engine.generate(requests))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return [type(error).__name__]
    wrong: list[str] = []
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
