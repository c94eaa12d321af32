"""One compiled decoder layer for all: fuses what a layer launches besides GEMMs and attention.

A model of N equal layers that is compiled whole is compiled N times over, which takes minutes and
exceeds the limit of recompilations. Its layers are of one class whose weights are arguments to the
compiler, so the `forward` of the class is compiled once, for any number of tokens above one, and put
into each layer for the duration of a pass. Attention remains one of our operators within it, and counts
the layers by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from batchproof.errors import ConfigError
from batchproof_engines.paged.stand_ins import StandIns

WORTH_A_ROW = 1e8  # weights, from which on a row of padding costs more than a second compilation
Forward = Callable[..., Any]

# Kept as long as the model lives: engines are built often.
_COMPILED: WeakKeyDictionary[PreTrainedModel, dict[str, Forward]] = WeakKeyDictionary()


class CompiledLayers(StandIns):
    """A context in which the layers of a model run compiled.

    Raises `ConfigError` for a model without a uniform list of layers.
    """

    def __init__(self, model: PreTrainedModel, backend: str) -> None:
        layers = uniform_layers(model)
        if not layers:
            raise ConfigError(
                f"engine 'paged': compile needs a model whose layers are of one class, in a ModuleList "
                f"as long as num_hidden_layers; {type(model).__name__} has none"
            )
        forwards = _COMPILED.setdefault(model, {})
        if backend not in forwards:
            forwards[backend] = _compiled(type(layers[0]).forward, backend)
        super().__init__((each, forwards[backend].__get__(each)) for each in layers)


def least_tokens(model: PreTrainedModel) -> int:
    """Returns how many tokens the smallest compiled pass has: the compiler makes code for one apart."""
    return 1 if sum(each.numel() for each in model.parameters()) >= WORTH_A_ROW else 2


def uniform_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Returns the decoder's layers if they are all of one class, else an empty tuple."""
    num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return tuple(module) if len({type(each) for each in module}) == 1 else ()
    return ()


def _compiled(forward: Any, backend: str) -> Forward:
    # Each model gets a code object of its own: the compiler limits recompilations by code object, and
    # those of another model must not count.
    own = FunctionType(
        forward.__code__.replace(),
        forward.__globals__,
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    compiled: Forward = torch.compile(own, dynamic=True, backend=_quiet(backend))
    return compiled


def _quiet(backend: str) -> Callable[..., Any]:
    """Returns the backend of that name without its warnings: advice such as to allow TF32 does not
    apply."""
    compiler = torch._dynamo.lookup_backend(backend)

    def compile_quietly(graph: Any, examples: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiler(graph, examples, **options)

    return compile_quietly
