"""The same bits in every batch: each row of a product, and each query, is computed alone.

A library chooses its kernel for a product by the shapes, and each kernel sums in an order of its own:
the same row gets other bits in a product of one row than in one of four, so the batch decides about
them. Alone, a row has one shape: a product has one row, and a query attends to the keys up to its own,
which are as many as its position says. That is slow, and exact by construction on any CPU and in any
dtype. vLLM's batch-invariant mode and Thinking Machines Lab, "Defeating Nondeterminism in LLM
Inference" (2025), write kernels for it.

Our native kernels (`native`, `decoder`) sum in one order anyway. So this is for what they do not serve:
other dtypes, machines without a compiler, blocks that move, and products of experts.

This module is a set of kernels too, `load_kernels("invariant")`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from batchproof.errors import UnsupportedModelError
from batchproof_paged.kernels import DecodeRows, LayerPass, PrefillRows, Span
from batchproof_paged.torch_kernels import attend_dense, write

# What else sums in an order that the shapes decide about.
OTHER_SUMS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.einsum),
        *(torch.mm, Tensor.mm, torch.mv, torch.bmm, Tensor.bmm, torch.baddbmm, torch.addbmm),
        *(torch.conv1d, torch.conv2d, torch.nn.functional.scaled_dot_product_attention),
    }
)


def decode(given: LayerPass, rows: DecodeRows) -> None:
    """See `Kernels.decode`."""
    places, block_size = rows.seq_lens - 1, given.cache.keys.shape[1]
    blocks = given.tables[rows.lanes, places // block_size].long()
    write(given, slice(len(places)), blocks * block_size + places % block_size)
    pairs = zip(rows.lanes.tolist(), places.tolist(), strict=True)
    for row, (lane, place) in enumerate(pairs):
        _attend(given, Span(lane, row, 1, place))


def prefill(given: LayerPass, rows: PrefillRows) -> None:
    """See `Kernels.prefill`."""
    write(given, slice(-len(rows.slots), None), rows.slots)
    assert rows.spans is not None, "the options exclude captured steps"
    for span in rows.spans:
        _attend(given, span)


def _attend(given: LayerPass, span: Span) -> None:
    """Attends for the tokens of a span, whose keys are all in the cache, one after another."""
    query, _, _, cache, tables, form, out = given
    num_blocks = -(-(span.context_len + span.query_len) // cache.keys.shape[1])
    blocks = tables[span.lane, :num_blocks]
    keys, values = (
        each[blocks].flatten(0, 1).transpose(0, 1)[None] for each in (cache.keys, cache.values)
    )
    for index in range(span.query_len):
        end = span.context_len + index + 1
        seen = slice(max(0, end - (form.window or end)), end)
        token = span.start + index
        alone = query[token].clone()[None, :, None]  # memory that begins alike for all
        attended = attend_dense(alone, keys[:, :, seen], values[:, :, seen], form, None, False)
        out[token] = attended[0, :, 0]


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    flat = rows.reshape(-1, rows.shape[-1])
    products = [linear(row.clone()[None], weight, bias) for row in flat]
    return torch.cat(products or [flat.new_empty(0, len(weight))]).view(*rows.shape[:-1], len(weight))


def _multiply_grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiplies each row with the matrix of its group, of `weights` (groups, in, out)."""
    groups = torch.searchsorted(ends, torch.arange(len(rows), dtype=ends.dtype), right=True)
    out = [
        linear(row.clone()[None], weights[group].t())
        for row, group in zip(rows, groups.tolist(), strict=True)
    ]
    return torch.cat(out)


class RowsAlone(TorchFunctionMode):
    """A context in which linear layers multiply row by row, and other products are refused.

    Raises `UnsupportedModelError` for an operator of `OTHER_SUMS`, unless it sums over one term.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is linear:
            return _multiply(*args, **kwargs or {})
        if func is torch.addmm and not kwargs:  # transformers' Conv1D
            bias, rows, weight = args
            return _multiply(rows, weight.t(), bias)
        if getattr(func, "__name__", "").lstrip("_").startswith("grouped_mm"):  # of experts
            rows, weights = args[:2]
            return _multiply_grouped(rows, weights, args[2] if kwargs is None else kwargs["offs"])
        if (func in OTHER_SUMS or func is torch.addmm) and not _has_one_term(args):
            raise UnsupportedModelError(
                f"it computes {func.__name__} outside its linear layers, whose order of summation "
                f"batch_invariant=true does not fix"
            )
        return func(*args, **kwargs or {})


def _has_one_term(args: tuple[Any, ...]) -> bool:
    """A product of these matrices sums over a single term, as that of RoPE does."""
    return isinstance(args[0], Tensor) and args[0].shape[-1:] == (1,)
