"""llama.cpp: GELU of a model in float32 is read from a table in half precision.

A Gemma, which has GELU, and a Llama, which has SiLU, are compared with transformers in float64.
"""

import torch
import transformers
from setup_llama import asked, converted, served, tiny

NUM = 5
heads = {"num_key_value_heads": 2, "head_dim": 16}
gelu = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
KINDS = {
    "Gemma, GELU": (transformers.GemmaConfig, heads | gelu),
    "Llama, SiLU": (transformers.LlamaConfig, heads),
}
prompt = [(37 * i + 11) % 250 + 3 for i in range(12)]
errors = {}
for name, (config, settings) in KINDS.items():
    model = tiny(config, **settings)
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": NUM}
    with served(converted(model)) as address:
        answer = asked(address, "/completion", body)
    told = {each["id"]: each["logprob"] for each in answer["completion_probabilities"][0]["top_logprobs"]}
    right = {}
    for dtype in (torch.float64, torch.float32):
        logits = model.to(dtype)(torch.tensor([prompt])).logits[0, -1].detach()
        right[dtype] = logits.double().log_softmax(-1)
    errors[name] = max(abs(told[each] - float(right[torch.float64][each])) for each in told)
    own = float((right[torch.float32] - right[torch.float64]).abs().max())
    print(f"{name}: logprobs are off by up to {errors[name]:.1e}; transformers in float32: {own:.1e}")
raise SystemExit(errors["Gemma, GELU"] > 20 * errors["Llama, SiLU"])
