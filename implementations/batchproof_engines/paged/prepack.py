"""Linear layers in the layout that a CPU multiplies fastest: contiguous weights of shape (in, out).

Any engine could do this, so it says nothing about batching, and it is off by default. The transposed
weights are a second copy of the model's. (oneDNN's own packed layout cannot be part of a trace, and up
to a width of 704 it was slower than no packing at all.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def packed_linears(model: PreTrainedModel) -> Iterator[None]:
    """A context, for making a trace, in which every `nn.Linear` multiplies with its transposed copy."""
    layers = [each for each in model.modules() if type(each) is nn.Linear]
    for layer in layers:
        # In the instance's dictionary, which takes precedence over the class; no weight is changed.
        layer.__dict__["forward"] = partial(_linear, layer.weight.detach().t().contiguous(), layer.bias)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _linear(weight: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
    product = rows @ weight
    return product if bias is None else product + bias
