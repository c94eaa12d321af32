"""transformers serve 5.23.0: an empty prompt alone ends the server for all.

    python -m batchproof install transformers-serve
    PYTHONPATH=. python results/engines/reproductions/serve_empty_prompt_kills_the_server.py

It exits with 1 if the failure is still there, with 0 if not. The empty prompt is not refused; alone in a
batch it is a batch of no token, whose forward pass raises and ends the thread that batches.
"""

import sys

import torch

from batchproof.api import EngineConfig, Request
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine

model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
engine = resolve_engine("transformers-serve").factory(model, EngineConfig())
good = Request("good", (1, 2, 3), 3)
empty = Request("empty", (), 3)


def told(request: Request) -> str:
    try:
        (completion,) = engine.generate([request])
    except RuntimeError as error:
        return str(error)
    return f"{completion.token_ids} ({completion.finish_reason})"


print("before:", told(good))
print("empty:", told(empty))
after = told(good)
print("after:", after)
engine.close()
sys.exit("503" in after)
