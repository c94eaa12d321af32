"""One decoder layer compiled for all: fuses what a layer launches besides GEMMs and attention.

A model of N equal layers that is compiled whole is compiled N times over, which takes minutes and
exceeds the limit of recompilations. Its layers are of one class whose weights are arguments to the
compiler, so one is compiled, for any number of tokens above one, and serves as all. Attention remains
one of our operators within it, and counts the layers by itself.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from batchproof_paged.attention import StandIns

LEAST_TOKENS = 2  # of a compiled pass: the compiler makes code for one apart, so that one is padded
AROUND = "Norm", "RotaryEmbedding"  # ends of names
SETTINGS = {"combo_kernels": True}  # of inductor: queries and keys are rotated by one kernel
Forward = Callable[..., Any]
Compiler = Callable[..., Any]  # of a graph, given examples of its inputs

# Kept as long as the model lives: engines are built often.
_COMPILED: WeakKeyDictionary[PreTrainedModel, dict[str, StandIns]] = WeakKeyDictionary()


def compiled_layers(model: PreTrainedModel, backend: str) -> StandIns:
    layers = uniform_layers(model)
    assert layers, "`feeding` refuses such a model"
    known = _COMPILED.setdefault(model, {})
    if backend not in known:
        known[backend] = StandIns(_stand_ins(model, layers, _quiet(backend)))
    return known[backend]


def _stand_ins(
    model: PreTrainedModel, layers: Sequence[nn.Module], backend: Compiler
) -> Iterator[tuple[nn.Module, Forward]]:
    for each in _around(model, layers):
        yield each, _compiled(type(each).forward, backend).__get__(each)
    forward = _compiled(type(layers[0]).forward, backend)
    yield from ((each, forward.__get__(each)) for each in layers)


def _around(model: PreTrainedModel, layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Yields the layers' neighbours that launch several operators: last norm and rotary embedding."""
    name = next(name for name, each in model.named_modules() if each is layers[0])
    parent = model.get_submodule(".".join(name.split(".")[:-2]))
    yield from (each for each in parent.children() if type(each).__name__.endswith(AROUND))


def uniform_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return tuple(module) if len({type(each) for each in module}) == 1 else ()
    return ()


def _compiled(forward: Any, backend: Compiler) -> Forward:
    # Each model gets a code object of its own: the compiler limits recompilations by code object, and
    # those of another model must not count.
    code, names = forward.__code__.replace(), forward.__globals__
    own = FunctionType(code, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    return torch.compile(own, dynamic=True, backend=backend)


def _quiet(backend: str) -> Compiler:
    """Returns the backend of that name without its warnings: advice such as to allow TF32 does not
    apply."""
    compiler = torch._dynamo.lookup_backend(backend)
    settings = import_module("torch._inductor.config").patch(SETTINGS)

    def compile_quietly(graph: Any, examples: Any, **options: Any) -> Any:
        with warnings.catch_warnings(), settings:
            warnings.simplefilter("ignore")
            return compiler(graph, examples, **options)

    return compile_quietly
