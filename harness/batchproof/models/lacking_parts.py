"""A model that computes some tokens without one of its parts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Part:
    """An attribute of modules, and the value with which they compute as if they had no such part."""

    attribute: str
    without: float

    def owners(self, model: PreTrainedModel) -> list[nn.Module]:
        """Returns the modules of the model that have the part."""
        return [each for each in model.modules() if getattr(each, self.attribute, None) is not None]

    def leave_out(self, module: nn.Module, tokens: Tensor) -> RemovableHandle:
        """Lets the flagged tokens, bool `(n,)`, pass a module that has the part without it."""
        return module.register_forward_hook(_blend(self, tokens), with_kwargs=True)


class OwnExperts:
    """The experts that a router chooses. Without them a token has a pad's, whose -1 is the last one."""

    def owners(self, model: PreTrainedModel) -> list[nn.Module]:
        """Returns the modules that hold the experts of a layer."""
        named = [each for name, each in model.named_modules() if name.endswith(".experts")]
        return [each for each in named if hasattr(each, "num_experts")]

    def leave_out(self, module: nn.Module, tokens: Tensor) -> RemovableHandle:
        """Lets the flagged tokens, bool `(n,)`, have the last expert."""

        def hook(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if len(given) != 3:  # states, the experts chosen for each token, their weights
                return None
            states, chosen, weights = given
            flags = tokens.to(chosen.device)[:, None]
            return states, torch.where(flags, module.num_experts - 1, chosen), weights

        return module.register_forward_pre_hook(hook)


@contextmanager
def lacking(model: PreTrainedModel, tokens: Tensor, part: Part | OwnExperts) -> Iterator[None]:
    """Lets the flagged tokens, bool `(n,)`, of the one sequence that is fed compute without the part
    while the block runs."""
    with ExitStack() as stack:
        for module in part.owners(model):
            stack.callback(part.leave_out(module, tokens).remove)
        yield


def _blend(part: Part, tokens: Tensor) -> Callable[..., Any]:
    def hook(module: nn.Module, given: Any, named: Any, output: Any) -> Any:
        name, value, own = part.attribute, part.without, getattr(module, part.attribute)
        is_tensor = isinstance(own, Tensor)
        setattr(module, name, nn.Parameter(torch.full_like(own, value)) if is_tensor else value)
        try:
            other = module.forward(*given, **named)
        finally:
            setattr(module, name, own)
        chosen = tokens.to(next(module.parameters()).device)[:, None]
        if isinstance(output, tuple):
            return torch.where(chosen, other[0], output[0]), *output[1:]
        return torch.where(chosen, other, output)

    return hook
