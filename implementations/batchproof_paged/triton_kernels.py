"""The set of Triton kernels; import it only if `triton_works`."""

from __future__ import annotations

from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import LayerCache
from batchproof_paged.triton_config import is_tuned
from batchproof_paged.triton_decode import decode
from batchproof_paged.triton_prefill import prefill
from batchproof_paged.triton_tuning import tuned

__all__ = ["decode", "graph_columns", "prefill", "tune"]


def tune(cache: LayerCache, num_heads: int, form: AttentionForm, num_seqs: int, seq_len: int) -> None:
    """Tunes each kind of layer once per process; see `Kernels.tune`."""
    if not is_tuned(cache):
        tuned(cache, num_heads, form, num_seqs, seq_len)


def graph_columns(num_columns: int, width: int) -> int:  # noqa: ARG001
    """Returns the full width: only the keys needed are read, so one graph serves all lengths."""
    return width
