"""The Triton set of kernels. Import it only where `triton_works`."""

from __future__ import annotations

from implementations.paged.triton_decode import decode
from implementations.paged.triton_prefill import prefill

__all__ = ["decode", "graph_columns", "prefill"]


def graph_columns(num_columns: int, width: int) -> int:  # noqa: ARG001
    """The whole table: no key is read that is not needed, so one graph serves all lengths."""
    return width
