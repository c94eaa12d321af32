"""The least kernel that shows whether Triton works; a module of its own, because it imports Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_one(x, size: tl.constexpr):  # type: ignore[no-untyped-def]
    cells = x + tl.arange(0, size)
    tl.store(cells, tl.load(cells) + 1)
