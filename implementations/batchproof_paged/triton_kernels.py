"""The set of Triton kernels; import it only if `triton_works`."""

from __future__ import annotations

from batchproof_paged.triton_decode import decode
from batchproof_paged.triton_prefill import prefill

__all__ = ["decode", "graph_columns", "prefill"]


def graph_columns(num_columns: int, width: int) -> int:  # noqa: ARG001
    """Returns the full width: only the keys needed are read, so one graph serves all lengths."""
    return width
