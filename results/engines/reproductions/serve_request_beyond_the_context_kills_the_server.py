"""transformers serve 5.23.0: one request longer than the model's positions ends the server for all.

    python -m batchproof install transformers-serve
    PYTHONPATH=. python results/engines/reproductions/serve_request_beyond_the_context_kills_the_server.py

It exits with 1 if the failure is still there, with 0 if not. GPT-2 has learned positions, here 256. The
request is not checked against them; the forward pass of its 257th token raises and ends the thread that
batches, so every later request is answered with HTTP 503.
"""

import sys

import torch

from batchproof.api import EngineConfig, Request
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine

model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
engine = resolve_engine("transformers-serve").factory(model, EngineConfig())
good = Request("good", (1, 2, 3), 3)
beyond = Request("beyond", tuple(range(240)), 30)


def told(request: Request) -> str:
    try:
        (completion,) = engine.generate([request])
    except RuntimeError as error:
        return str(error)
    return f"{completion.token_ids} ({completion.finish_reason})"


print("before:", told(good))
print("240 tokens and 30 more:", told(beyond))
after = told(good)
print("after:", after)
engine.close()
sys.exit("503" in after)
