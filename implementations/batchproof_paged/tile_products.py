"""Products with weights, in which the bits of a row do not depend on the other rows of the batch.

A library chooses its kernel for a product by the shapes, and each kernel sums in an order of its own:
the same row gets other bits in a product of one row than in one of four, so the batch decides about
them. Here all products of a weight have one shape: `TILE` rows. More rows are cut into tiles, and the
last tile is filled up with zeros. The idea is that of Thinking Machines Lab, "Defeating Nondeterminism
in LLM Inference" (2025), and of vLLM's batch-invariant mode; they write kernels, this uses torch's.

Such a kernel might still treat one place of a tile differently from another. Whether it does is tried
once for each shape of a weight; if so, its tiles have one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

from batchproof.errors import UnsupportedModelError

TILE = 16  # rows: a single row costs four times what it would alone, hundreds cost 1.25 times as much
# What else sums in an order that the shapes decide about.
OTHER_SUMS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.einsum),
        *(torch.mm, Tensor.mm, torch.mv, torch.bmm, Tensor.bmm, torch.baddbmm, torch.addbmm),
        *(torch.conv1d, torch.conv2d, torch.nn.functional.scaled_dot_product_attention),
    }
)


class TileProducts:
    """Multiplies tile by tile; a context in which `LinearsByTiles` do so with it."""

    def __init__(self) -> None:
        self._heights: dict[tuple[object, ...], int] = {}  # by shape of a weight
        self._tokens: list[Token[TileProducts | None]] = []

    def multiply(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns `rows` (..., in) times `weight` (out, in), plus `bias` (out,): (..., out)."""
        facts = (weight.shape, weight.stride(), weight.dtype)
        height = self._heights.get(facts) or self._heights.setdefault(facts, _height(weight))
        flat = rows.reshape(-1, rows.shape[-1])
        tiles = pad(flat, (0, 0, 0, -len(flat) % height)).split(height)
        product = torch.cat([linear(tile, weight, bias) for tile in tiles])
        return product[: len(flat)].view(*rows.shape[:-1], len(weight))

    def __enter__(self) -> None:
        self._tokens.append(_CURRENT.set(self))

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())


def _height(weight: Tensor) -> int:
    """Returns the rows of a tile: `TILE`, if a row there has the same bits at all places, whatever the
    others hold; else 1."""
    row = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    alone = row.new_zeros(TILE, len(row))
    alone[-1] = row
    everywhere = linear(row.expand(TILE, -1).contiguous(), weight)
    is_equal = torch.equal(everywhere, linear(alone, weight)[-1].expand_as(everywhere))
    return TILE if is_equal else 1


# While a trace is made there is no pass.
_CURRENT: ContextVar[TileProducts | None] = ContextVar("the current products", default=None)

# An operator, so that it stays one call in a trace.
_LIBRARY = torch.library.Library("batchproof", "FRAGMENT")
_LIBRARY.define("multiply(Tensor rows, Tensor weight, Tensor? bias) -> Tensor")


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return (_CURRENT.get() or TileProducts()).multiply(rows, weight, bias)


_LIBRARY.impl("multiply", _multiply, "CompositeExplicitAutograd")


class LinearsByTiles(TorchFunctionMode):
    """A context in which linear layers multiply tile by tile, and other products are refused.

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
            return _linear(*args, **kwargs or {})
        if func is torch.addmm and not kwargs:  # transformers' Conv1D
            bias, rows, weight = args
            return torch.ops.batchproof.multiply.default(rows, weight.t(), bias)
        if (func in OTHER_SUMS or func is torch.addmm) and not _has_one_term(args):
            raise UnsupportedModelError(
                f"it computes {func.__name__} outside its linear layers, whose order of summation "
                f"batch_invariant=true does not fix"
            )
        return func(*args, **kwargs or {})


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.batchproof.multiply.default(rows, weight, bias)
    return product


def _has_one_term(args: tuple[Any, ...]) -> bool:
    """Returns whether a product of these matrices sums over a single term, as that of RoPE does."""
    return isinstance(args[0], Tensor) and args[0].shape[-1:] == (1,)
