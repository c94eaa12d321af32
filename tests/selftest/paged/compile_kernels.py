"""Compiles the Triton kernels, as they would be launched, for a GPU that need not be present.

    python -m tests.selftest.paged.compile_kernels sm_90 [LAYER ...]

A kernel that spills more than `KNOWN_SPILLS`, or that does not fit, makes the exit status 1. A launch
goes its usual way as far as the compiler: what a kernel is specialised on (types, alignment,
divisibility) is Triton's own doing. Only the driver is ours, and the launch itself is left out.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import DecodeRows, LayerCache, LayerPass, PrefillRows
from batchproof_paged.triton_decode import Splits, decode
from batchproof_paged.triton_prefill import prefill
from tests.selftest.paged.rehearsal import Shape

SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}  # of a program, at most
BF16, FP32 = torch.bfloat16, torch.float32
LLAMA_8B, GPT2, MLA = Shape(8, 4, 128, 128), Shape(12, 1, 64, 64), Shape(16, 1, 192, 128)
PLAIN, SINKS = AttentionForm(0.1), AttentionForm(0.1, 128, sinks=torch.zeros(64, dtype=BF16))
# name: shape, dtype, form, block size
LAYERS = {
    "llama-8b": (LLAMA_8B, BF16, PLAIN, 16),
    "llama-8b, fp32": (LLAMA_8B, FP32, PLAIN, 16),
    "llama-1b": (Shape(8, 4, 64, 64), BF16, PLAIN, 16),
    "gpt2": (GPT2, BF16, PLAIN, 16),
    "gpt2, fp32": (GPT2, FP32, PLAIN, 16),
    "gemma: 256, softcap, window": (Shape(4, 2, 256, 256), BF16, AttentionForm(0.1, 4096, 50.0), 16),
    "gpt-oss: sinks, window": (Shape(8, 8, 64, 64), BF16, SINKS, 16),
    "MLA: 192 and 128": (MLA, BF16, PLAIN, 16),
    "group of 7": (Shape(2, 7, 64, 64), BF16, PLAIN, 16),
    "blocks of 1": (LLAMA_8B, BF16, PLAIN, 1),
}
KNOWN_SPILLS = {  # bytes of a thread, by Triton 3.6 for sm_90
    ("gpt2, fp32", "_prefill_kernel"): 24,
    ("MLA: 192 and 128", "_write_kernel"): 8,
}
FACTS = r"Used (\d+) registers", r"(\d+) bytes spill stores"


def launch_all(shape: Shape, dtype: torch.dtype, form: AttentionForm, block_size: int) -> None:
    """Launches decodes in one share and in several, a whole prompt and one of few tokens."""
    kv_heads, qk_dim, v_dim = shape.num_kv_heads, shape.qk_dim, shape.v_dim
    keys, values = (torch.zeros(8, block_size, kv_heads, dim, dtype=dtype) for dim in (qk_dim, v_dim))
    sizes = (shape.num_heads, qk_dim), (kv_heads, qk_dim), (kv_heads, v_dim)
    # As a model makes them: heads before tokens.
    rows = (torch.zeros(num, 130, dim, dtype=dtype).transpose(0, 1) for num, dim in sizes)
    out = torch.zeros(130, shape.num_heads, v_dim, dtype=dtype)
    tables, numbers = torch.zeros(5, 64, dtype=torch.int32), torch.zeros(200, dtype=torch.int64)
    given = LayerPass(*rows, LayerCache(keys, values), tables, form, out)
    for staged in (numbers, numbers[1:]):  # it may start at any eight bytes
        for num_splits in (1, 8):
            decode(given, DecodeRows(staged[:4], staged[4:8], 64), Splits(num_splits))
        for num in (128, 3):
            lanes, context_lens, starts, slots = staged[:2], staged[2:4], staged[4:7], staged[:num]
            prefill(given, PrefillRows(lanes, context_lens, starts, 64, slots, None))


def main(target: str, *names: str) -> int:
    capability = int(target.removeprefix("sm_"))
    gpu, launch = GPUTarget("cuda", capability, 32), JITFunction.run
    known: set[int] = set()  # Triton keeps what it has compiled
    num_bad = 0

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:  # noqa: ARG001
        nonlocal num_bad
        with redirect_stdout(io.StringIO()) as log:
            compiled = launch(kernel, *args, grid=grid, warmup=True, **constants)
        if id(compiled) in known:
            return
        known.add(id(compiled))
        registers, spilled = (int(re.findall(each, log.getvalue())[0]) for each in FACTS)
        shared, most = compiled.metadata.shared, KNOWN_SPILLS.get((name, kernel.__name__), 0)
        is_bad = spilled > most or shared > SHARED_BYTES[target]
        num_bad += is_bad
        facts = f"{registers} registers, {spilled} bytes spilled, {shared} bytes shared"
        print(f"{name}: {kernel.__name__}: {facts}{' BAD' * is_bad}", flush=True)

    asked = {"get_current_target": lambda: gpu, "get_current_device": lambda: 0}
    driver.set_active(SimpleNamespace(**asked, get_current_stream=lambda device: device))
    with (
        patch.object(torch.cuda, "get_device_capability", return_value=divmod(capability, 10)),
        patch.object(JITFunction, "run", compile_only),
        patch.object(knobs.compilation, "always_compile", True),
        patch.object(knobs.nvidia, "dump_ptxas_log", True),
    ):
        for name in names or LAYERS:
            launch_all(*LAYERS[name])
    print(f"{len(known)} kernels, {num_bad} bad")
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
