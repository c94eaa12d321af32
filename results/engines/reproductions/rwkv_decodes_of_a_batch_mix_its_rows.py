"""RWKV decodes a batch of two or more prompts wrongly, also in `generate`: the rows mix.

Seen in 5.17.0 and 5.23.0.
"""

import torch
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
model = RwkvForCausalLM(
    RwkvConfig(
        vocab_size=96,
        context_length=64,
        hidden_size=32,
        num_hidden_layers=2,
        bos_token_id=0,
        eos_token_id=0,
    )
).eval()
for weight in model.parameters():
    torch.nn.init.normal_(weight, std=0.5)
prompts = torch.randint(3, 96, (2, 5))


def answers(batch):
    given = {"attention_mask": torch.ones_like(batch), "max_new_tokens": 6, "do_sample": False}
    try:
        return model.generate(batch, **given, pad_token_id=0)[:, 5:].tolist()
    except RuntimeError as error:
        return [f"{type(error).__name__}: {error}"]


alone = [answers(prompt[None])[0] for prompt in prompts]
together = answers(prompts)
print(f"alone:    {alone}\ntogether: {together}")
raise SystemExit(alone != together)
