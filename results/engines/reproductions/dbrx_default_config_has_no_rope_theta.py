"""transformers: a DbrxConfig whose attn_config is not spelled out cannot be built.

Seen in 5.17.0 and 5.23.0.
"""
import torch
from transformers import DbrxConfig, DbrxForCausalLM

failures = 0
small = dict(vocab_size=64, d_model=32, n_heads=4, n_layers=1)
try:
    DbrxForCausalLM(DbrxConfig(**small))
except AttributeError as error:
    failures += 1
    print("default attn_config:", error)
try:
    model = DbrxForCausalLM(DbrxConfig(**small, attn_config={"rope_theta": 1e4}))
    model(torch.arange(4)[None])
except RuntimeError as error:
    failures += 1
    print("clip_qkv None:      ", error)
raise SystemExit(failures > 0)
