"""transformers: Mamba, FalconMamba, Jamba and Zamba forget the recurrent state when several tokens
follow a cache.

Seen in 5.17.0 and 5.23.0.
"""
import torch
from transformers import FalconMambaConfig, FalconMambaForCausalLM, Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

small = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8, initializer_range=0.2)
models = {"mamba2": Mamba2ForCausalLM(Mamba2Config(**small, num_heads=4, head_dim=16, n_groups=1)),
          "mamba": MambaForCausalLM(MambaConfig(**small)),
          "falcon_mamba": FalconMambaForCausalLM(FalconMambaConfig(**small))}
worst = 0.0
ids = torch.randint(4, 64, (1, 24), generator=torch.Generator().manual_seed(0))
for name, model in models.items():
    torch.manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(std=0.3) if weight.dim() > 1 else weight.data.add_(torch.randn_like(weight), alpha=0.1)
    model = model.double().eval()
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, -1]
        first = model(ids[:, :16], use_cache=True)
        cache = getattr(first, "cache_params", None) or first.past_key_values
        key = "cache_params" if hasattr(first, "cache_params") else "past_key_values"
        parts = model(ids[:, 16:], use_cache=True, **{key: cache}).logits[:, -1]
    worst = max(worst, (parts - whole).abs().max().item())
    print(f"{name:12} whole prompt and prompt in two parts differ by {(parts - whole).abs().max():.2g}"
          f" (logits spread over {whole.max() - whole.min():.2g})")
raise SystemExit(worst > 1e-6)
