"""A model that computes some tokens without one of its parts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Part:
    """An attribute of modules, and the value with which they compute as if they had no such part."""

    text: str
    without: float


PARTS = {
    "sinks": Part("sinks", -1e4),
    "limit": Part("the clamp of its experts' gates", 1e4),
    "attn_logit_softcapping": Part("the cap on scores", 1e6),
}


def has_part(model: PreTrainedModel, part: str) -> bool:
    """Returns whether a module of the model has this attribute."""
    return any(getattr(module, part, None) is not None for module in model.modules())


@contextmanager
def lacking(model: PreTrainedModel, part: str, tokens: Tensor) -> Iterator[None]:
    """Lets the flagged tokens, bool `(n,)`, of the one sequence that is fed compute without the part
    while the block runs."""
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, part, None) is not None:
                hook = module.register_forward_hook(_blend(part, tokens), with_kwargs=True)
                stack.callback(hook.remove)
        yield


def _blend(part: str, tokens: Tensor) -> Callable[..., Any]:
    def hook(module: nn.Module, given: Any, named: Any, output: Any) -> Any:
        own = getattr(module, part)
        value = PARTS[part].without
        is_tensor = isinstance(own, Tensor)
        setattr(module, part, nn.Parameter(torch.full_like(own, value)) if is_tensor else value)
        try:
            other = module.forward(*given, **named)
        finally:
            setattr(module, part, own)
        chosen = tokens.to(next(module.parameters()).device)[:, None]
        if isinstance(output, tuple):
            return torch.where(chosen, other[0], output[0]), *output[1:]
        return torch.where(chosen, other, output)

    return hook
