"""transformers serve 5.23.0: the EOS ids of a server's first request stop later ones that name none.

    python -m batchproof install transformers-serve
    PYTHONPATH=. python results/engines/reproductions/serve_eos_of_the_first_request_stays.py

It exits with 1 if the failure is still there, with 0 if not. The server makes its batching manager
when the first request comes, with that request's generation config, and `add_request` takes what a
request leaves out from there.
"""

import sys

import torch

from batchproof.api import EngineConfig, Request
from batchproof.models.catalogue import load_model
from batchproof.run.registry import reference_factory, resolve_engine

model = load_model("gpt2-random", torch.device("cpu"), torch.float32).model
plain = Request("plain", (5, 6, 7), 8)
(right,) = reference_factory()(model, EngineConfig()).generate([plain])
stopping = Request("stopping", (5, 6, 7), 8, frozenset({right.token_ids[2]}))

engine = resolve_engine("transformers-serve").factory(model, EngineConfig())
(alone,) = engine.generate([stopping])  # the first request that this server sees
(after,) = engine.generate([plain])
engine.close()
print(f"EOS {set(stopping.eos_token_ids)}: {alone.token_ids} ({alone.finish_reason})")
print(f"no EOS: {after.token_ids} ({after.finish_reason}), but should be {right.token_ids}")
sys.exit(after.token_ids != right.token_ids)
