"""A model that computes some tokens under low-rank adapters, as an engine does that packs requests of
several."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Adapting:
    """What becomes of adapters: they leave alone the layer of each block that is named `without`, and
    what one adds is multiplied by the `factor` of its number."""

    without: str = ""
    factor: Callable[[int], float] = lambda _: 1.0


AS_ASKED = Adapting()


@contextmanager
def adapted(model: PreTrainedModel, numbers: Tensor, how: Adapting) -> Iterator[None]:
    """Lets each token of the one sequence that is fed compute under the adapter of its number, int64
    `(n,)`, or without one where that is 0, while the block runs."""
    from batchproof.models.llama_variants import SCALE, low_rank  # noqa: PLC0415 - few sessions need it

    with ExitStack() as stack:
        for number in numbers[numbers > 0].unique().tolist():
            tokens, scale = numbers == number, SCALE * how.factor(number)
            for name, (a, b) in low_rank(number):
                if not how.without or not name.endswith(how.without):
                    hook = _adding(model, tokens, a, scale * b)
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
