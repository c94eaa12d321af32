"""A rung of the ladder: builds an engine twice, and asks it what the fastest conformance tests ask.

python -m tests.gpu.smoke cuda 'paged?compile=false'

Exit status 1 if it fails, or if the engine has given up one of its options by itself: what is
measured later must be what its name says.
"""

import sys
import traceback
from time import perf_counter

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.models.catalogue import load_model
from batchproof.run.devices import synchronise
from batchproof.run.registry import resolve_engine

MODEL = "llama-hash"
TESTS = "smoke or full_batch or newcomer_joins"  # few rows and many, prompts beside decodes


def main(device: str, engine: str) -> int:
    torch.set_num_threads(1)  # on a CPU the work is too small for several threads
    model = load_model(MODEL, torch.device(device), torch.float32).model
    try:
        built_s = [_build_s(engine, model) for _ in range(2)]
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0]
        print(f"{engine} FAILED: {type(error).__name__}: {first_line[:160]}")
        return 1
    told = f"a build takes {built_s[0]:.1f} s, the next {built_s[1]:.2f} s"
    print(f"{engine}: {told}", flush=True)  # what follows may hang
    where = ("-q", "-p", "no:cacheprovider", "tests/conformance", "-k", TESTS, "--model", MODEL)
    limits = ("--hypothesis-profile", "quick", "--engine-time-limit", "60")
    ignored = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of plugins, imported by now
    status = pytest.main([*where, *limits, *ignored, "--device", device, "--engine", engine])
    print(f"{engine} FAILED: pytest ended with {status!r}" if status else f"{engine} passes; {told}")
    return int(bool(status))


def _build_s(engine: str, model: PreTrainedModel) -> float:
    """Returns the seconds of a build. Raises `RuntimeError` if the engine is not what was asked for."""
    began = perf_counter()
    built = resolve_engine(engine).factory(model, EngineConfig())
    synchronise(model.device)
    seconds = perf_counter() - began
    if notes := getattr(built, "notes", ()):
        raise RuntimeError(f"the engine does without some of its options: {'; '.join(notes)}")
    return seconds


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
