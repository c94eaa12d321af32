"""The set of Triton kernels, launched so that each starts while the one before it ends (programmatic
dependent launch; compute capability 9.0, elsewhere as usual)."""

from __future__ import annotations

from functools import partial

from batchproof_paged import triton_kernels
from batchproof_paged.triton_kernels import graph_columns, tune

__all__ = ["decode", "graph_columns", "prefill", "tune"]

decode = partial(triton_kernels.decode, pdl=True)
prefill = partial(triton_kernels.prefill, pdl=True)
