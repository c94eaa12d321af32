"""The shapes for which the Triton kernels are compiled without a GPU: real models, and unusual ones.

`python -m tests.selftest.paged.triton_shapes sm_90 ["llama-8b, bf16" ...]` prints a JSON line a kernel.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch

from batchproof_paged import triton_decode, triton_prefill
from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import DecodeRows, LayerCache, LayerPass, PrefillRows
from batchproof_paged.triton_decode import Splits
from tests.selftest.paged.rehearsal import Shape
from tests.selftest.paged.triton_compile import PROCESSORS, compiling_for

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A layer as the kernels see it."""

    shape: Shape
    dtypes: tuple[torch.dtype, ...] = (BF16,)
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    block_size: int = 16

    def form(self, dtype: torch.dtype) -> AttentionForm:
        sinks = torch.zeros(self.shape.num_heads, dtype=dtype) if self.has_sinks else None
        return AttentionForm(0.1, self.window, self.softcap, sinks)


LLAMA_8B = Shape(8, 4, 128, 128)
ASKED = {
    "llama-8b": Asked(LLAMA_8B, (BF16, FP16, FP32)),
    "llama-1b": Asked(Shape(8, 4, 64, 64)),
    "qwen3-0.6b": Asked(Shape(8, 2, 128, 128)),
    "gpt2": Asked(Shape(12, 1, 64, 64), (BF16, FP32)),
    "tiny": Asked(Shape(4, 2, 32, 32), (BF16, FP32)),
    "gemma: 256, softcap, window": Asked(Shape(4, 2, 256, 256), (BF16, FP32), 4096, 50.0),
    "gpt-oss: sinks, window": Asked(Shape(8, 8, 64, 64), window=128, has_sinks=True),
    "MLA: 192 and 128": Asked(Shape(16, 1, 192, 128), (BF16, FP32)),
    "head of 80": Asked(Shape(32, 1, 80, 80)),
    "head of 96": Asked(Shape(32, 1, 96, 96)),
    "group of 7": Asked(Shape(2, 7, 64, 64)),
    "group of 48": Asked(Shape(1, 48, 128, 128)),
    "blocks of 1": Asked(LLAMA_8B, block_size=1),
    "blocks of 256": Asked(LLAMA_8B, block_size=256),
}
CASES = {
    f"{name}, {NAMES[dtype]}": (each, dtype) for name, each in ASKED.items() for dtype in each.dtypes
}


def launch_all(asked: Asked, dtype: torch.dtype) -> None:
    """Launches decodes in one share and in several, a whole prompt and one of few tokens."""
    shape, form = asked.shape, asked.form(dtype)
    keys, values = (
        torch.zeros(8, asked.block_size, shape.num_kv_heads, dim, dtype=dtype)
        for dim in (shape.qk_dim, shape.v_dim)
    )
    cache = LayerCache(keys, values)
    # As a model makes them: heads before tokens.
    query, key, value = (
        torch.zeros(num_heads, 130, dim, dtype=dtype).transpose(0, 1)
        for num_heads, dim in (
            (shape.num_heads, shape.qk_dim),
            (shape.num_kv_heads, shape.qk_dim),
            (shape.num_kv_heads, shape.v_dim),
        )
    )
    out = torch.zeros(130, shape.num_heads, shape.v_dim, dtype=dtype)
    tables = torch.zeros(5, 64, dtype=torch.int32)
    given = LayerPass(query, key, value, cache, tables, form, out)
    numbers = torch.zeros(200, dtype=torch.int64)
    for staged in (numbers, numbers[1:]):  # it may start at any eight bytes
        for num_splits in (1, 8):
            rows = DecodeRows(staged[:4], staged[4:8], 64)
            triton_decode.decode(given, rows, Splits(num_splits))
        for num_tokens in (128, 3):
            prefills = PrefillRows(staged[:2], staged[2:4], staged[4:7], 64, staged[:num_tokens], ())
            triton_prefill.prefill(given, prefills)


def main(target: str, cases: list[str]) -> None:
    for case in cases or CASES:
        with compiling_for(PROCESSORS[target]) as found:
            launch_all(*CASES[case])
        for each in found:
            print(json.dumps({"target": target, "case": case} | asdict(each)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
