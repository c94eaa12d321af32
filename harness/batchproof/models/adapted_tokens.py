"""A model that computes some tokens under low-rank adapters, as an engine does that packs requests of
several."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from batchproof.decoding.adapters import SCALE, Layers, LowRank


@dataclass(frozen=True, slots=True)
class Adapting:
    """What becomes of adapters: they leave alone the layer of each block that is named `without`, and
    what one adds to a layer is multiplied by the `factor` of that."""

    without: str = ""
    factor: Callable[[LowRank], float] = lambda _: 1.0


AS_ASKED = Adapting()


@contextmanager
def adapted(
    model: PreTrainedModel, numbers: Tensor, how: Adapting, low_rank_of: Callable[[int], Layers]
) -> Iterator[None]:
    """Lets each token of the one sequence that is fed compute under the adapter of its number, int64
    `(n,)`, or without one where that is 0, while the block runs."""
    with ExitStack() as stack:
        for number in numbers[numbers > 0].unique().tolist():
            for name, added in low_rank_of(number):
                if not how.without or not name.endswith(how.without):
                    scale = SCALE * how.factor(added)
                    hook = _adding(model, numbers == number, added.a, scale * added.b)
                    layer = model.get_submodule(name)
                    stack.callback(layer.register_forward_hook(hook).remove)
        yield


def _adding(model: PreTrainedModel, tokens: Tensor, a: Tensor, b: Tensor) -> Callable[..., Tensor]:
    a, b = (each.to(model.device, model.dtype) for each in (a, b))
    chosen = tokens.to(model.device)[:, None]

    def hook(_module: nn.Module, given: Any, output: Tensor) -> Tensor:
        added: Tensor = given[0] @ a.T @ b.T
        return torch.where(chosen, output + added, output)

    return hook
