"""transformers: Qwen2MoeAttention and PhimoeAttention do not pass `sliding_window` to the attention
interface.

Shown on a CPU with an attention function of flash's contract: causal, windowed by the keyword, no mask.
Seen in 5.17.0 and 5.23.0.
"""
import torch
import torch.nn.functional as F
from transformers import (AttentionInterface, MixtralConfig, MixtralForCausalLM, PhimoeConfig, PhimoeForCausalLM,
                          Qwen2MoeConfig, Qwen2MoeForCausalLM)

WINDOW = 4


def maskless(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **_):
    assert attention_mask is None
    places = torch.arange(query.shape[2])
    distance = places[:, None] - places
    visible = (distance >= 0) & (distance < (sliding_window or 1 << 30))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


AttentionInterface.register("maskless", maskless)
small = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, num_experts_per_tok=2, initializer_range=0.2, pad_token_id=None,
             bos_token_id=None, eos_token_id=None)
cases = {
    "mixtral": MixtralForCausalLM(MixtralConfig(**small, num_local_experts=4, sliding_window=WINDOW)),
    "qwen2_moe": Qwen2MoeForCausalLM(Qwen2MoeConfig(
        **small, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, use_sliding_window=True,
        sliding_window=WINDOW, layer_types=["sliding_attention"] * 2)),
    "phimoe": PhimoeForCausalLM(PhimoeConfig(**small, num_local_experts=4, sliding_window=WINDOW)),
}
worst = 0.0
ids = torch.randint(0, 64, (1, 16), generator=torch.Generator().manual_seed(0))
for name, model in cases.items():
    model.eval()
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model.set_attn_implementation("maskless")
        got = model(ids, use_cache=False).logits
    worst = max(worst, (got - expected).abs().max().item())
    print(f"{name:10} sdpa and flash's contract differ by {(got - expected).abs().max():.2g}")
raise SystemExit(worst > 1e-3)
