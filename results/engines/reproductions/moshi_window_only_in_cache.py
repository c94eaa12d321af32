"""transformers: Moshi's `sliding_window` limits its cache, but not its mask.

Seen in 5.17.0 and 5.23.0.
"""
import torch
from transformers import MoshiConfig
from transformers.models.moshi.modeling_moshi import MoshiForCausalLM

torch.manual_seed(0)
config = MoshiConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                     head_dim=8, ffn_dim=64, sliding_window=4, initializer_range=0.2)
model = MoshiForCausalLM(config).double().eval()
ids = torch.randint(0, 64, (1, 12))
worst = 0.0
with torch.no_grad():
    whole = model(ids, use_cache=False).logits
    out = model(ids[:, :1], use_cache=True)
    for i in range(1, 12):
        out = model(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
        worst = max(worst, (out.logits[:, -1] - whole[:, i]).abs().max().item())
        print(f"token {i:2}: differ by {(out.logits[:, -1] - whole[:, i]).abs().max():.2g}")
raise SystemExit(worst > 1e-6)
