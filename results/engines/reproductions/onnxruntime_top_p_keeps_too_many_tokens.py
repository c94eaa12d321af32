"""onnxruntime-genai 0.18.0: without a top_k, top_p keeps many more tokens than reach its sum.

The model has constant logits: token k has -k / 100, of 256.
"""

import numpy as np
import onnxruntime_genai as og
import torch
from setup_onnxruntime import built_from, tiny

model = tiny().requires_grad_(False)
for layer in model.model.layers:
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
model.model.embed_tokens.weight.fill_(1)
logits = -torch.arange(256) / 100
model.lm_head.weight.copy_((logits / 64)[:, None].expand(256, 64))
built = built_from(model)


def highest(top_k: int) -> int:
    """Of 500 tokens drawn with a top_p of 0.4, the least likely."""
    engine = og.Engine(og.Model(built))
    drawn = []
    for _ in range(500):
        request = engine.create_request()
        turn = og.TurnOptions(request)
        turn.set_max_generated_tokens(1)
        turn.set_do_sample(True)
        turn.set_temperature(1.0)
        turn.set_top_k(top_k)
        turn.set_top_p(0.4)
        request.begin_turn(np.array([7, 8], dtype=np.int32), turn)
        while engine.has_pending_requests():
            events = engine.run(engine.create_event_buffer(16))
            drawn += [event.token for event in events if int(event.flags) & 1]
        request.close()
    return max(drawn)


shares = logits.softmax(-1)
last = int((shares.cumsum(-1) < 0.4).sum())
print(f"top_p 0.4 keeps tokens 0 to {last}")
print(f"top_p 0.4 and top_k 256: the least likely token drawn is {highest(256)}")
got = highest(0)
print(f"top_p 0.4 alone: the least likely token drawn is {got}, should be {last} at most")
raise SystemExit(got > last)
