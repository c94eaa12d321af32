"""Bamba with a cache but without `position_ids` gives the tokens of every pass positions from 0 on.

Seen in 5.17.0 and 5.23.0.
"""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
model = BambaForCausalLM(
    BambaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=16,
        initializer_range=0.2,
    )
).eval()
tokens = torch.randint(3, 96, (1, 12))


@torch.no_grad()
def off(with_positions):
    """How far the logits of the last token, decoded upon a cache, are from those of one pass."""
    prefill = model(tokens[:, :-1], use_cache=True)
    given = {"position_ids": torch.tensor([[11]])} if with_positions else {}
    decode = model(tokens[:, -1:], past_key_values=prefill.past_key_values, use_cache=True, **given)
    return (decode.logits[0, -1] - model(tokens, use_cache=False).logits[0, -1]).abs().max().item()


named, left = off(with_positions=True), off(with_positions=False)
print(f"off by {named:.2g} with position_ids, by {left:.2g} without")
raise SystemExit(left > 0.01 > named)
