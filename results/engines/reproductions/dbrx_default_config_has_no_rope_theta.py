"""transformers: a DbrxConfig whose attn_config is not spelled out cannot be built.

DbrxAttention reads `attn_config.rope_theta`, which DbrxAttentionConfig does not define (and does not
need: the rotary embedding reads config.rope_parameters). With it given, `clip_qkv=None`, the default,
fails in torch.clamp. Seen in 5.17.0 and 5.23.0. Exit status 1: reproduced.
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
