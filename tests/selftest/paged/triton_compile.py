"""Compiles the Triton kernels for a GPU that need not be there: `python triton_compile.py 90`.

The interpreter runs what no compiler would take. Prints a line for each kernel with the bytes of shared
memory it needs; the number is the compute capability times ten.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from implementations.paged import triton_decode, triton_prefill
from implementations.paged.attention import AttentionForm
from implementations.paged.kernels import DecodeRows, LayerCache, PrefillRows, Span
from tests.selftest.paged.rehearsal import Shape

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}
USUAL, ODD, LARGE = Shape(8, 4, 128, 128), Shape(2, 7, 20, 24), Shape(4, 2, 256, 256)


class CompileOnly:
    """Stands in for a kernel: compiles for what it is called with."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self._kernel = kernel
        self._target = GPUTarget("cuda", capability, 32)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: Any, num_warps: int = 4, num_stages: int = 3, **constants: Any) -> None:
        names = self._kernel.arg_names
        given = dict(zip(names, args, strict=False)) | constants
        types = {name: kind_of(given[name], name in constants) for name in names}
        fixed = {name: given[name] for name in names if types[name] == "constexpr"}
        options = {"num_warps": num_warps, "num_stages": num_stages}
        source = ASTSource(self._kernel, types, fixed)
        compiled = triton.compile(source, target=self._target, options=options)
        print(self._kernel.__name__, compiled.metadata.shared, flush=True)


def kind_of(value: Any, is_constant: bool) -> str:
    if is_constant or value is None:
        return "constexpr"
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def compile_all(shape: Shape, dtype: torch.dtype, form: AttentionForm) -> None:
    keys, values = (
        torch.zeros(8, 16, shape.num_kv_heads, dim, dtype=dtype) for dim in (shape.qk_dim, shape.v_dim)
    )
    cache = LayerCache(keys, values)
    query = torch.zeros(99, shape.num_heads, shape.qk_dim, dtype=dtype)
    out = torch.zeros(99, shape.num_heads, shape.v_dim, dtype=dtype)
    tables = torch.zeros(5, 64, dtype=torch.int32)
    some = torch.arange(4)
    for num_splits in (1, 8):
        rows = DecodeRows(some, some, 64)
        triton_decode.decode(query, cache, tables, rows, form, out, num_splits)
    triton_prefill.write(cache, some, keys[0][:4], values[0][:4])
    prefills = PrefillRows(some[:1], some[:1], some[:2], (Span(0, 0, 99, 0),))
    triton_prefill.prefill(query, cache, tables, prefills, form, out)


def main(capability: int) -> None:
    for module, names in (
        (triton_decode, ("_decode_kernel", "_merge_kernel")),
        (triton_prefill, ("_prefill_kernel", "_write_kernel")),
    ):
        for name in names:
            setattr(module, name, CompileOnly(getattr(module, name), capability))
    plain = AttentionForm(0.1)
    compile_all(USUAL, torch.bfloat16, plain)
    compile_all(USUAL, torch.float32, plain)
    for shape, dtype in ((ODD, torch.float32), (LARGE, torch.bfloat16)):
        compile_all(shape, dtype, AttentionForm(0.1, 100, 50.0, torch.zeros(shape.num_heads)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
