"""A few decoder layers compiled for all: fuses what a layer launches besides GEMMs and attention.

A model of N equal layers that is compiled whole is compiled N times over, which takes minutes and
exceeds the limit of recompilations. Its layers are of one class whose weights are arguments to the
compiler, so a stretch of a few is compiled once, for any number of tokens above one, and serves as all
stretches. That fuses what lies between two layers as well: the sum that ends one and the norm that
begins the next. Attention remains one of our operators within it, and counts the layers by itself.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.functional import linear
from transformers import PreTrainedModel

from batchproof_paged.attention import Attached, StandIns

LARGE = 1e8  # weights, from which on a kernel less is worth longer compilation
STRETCHES = 4, 3, 2, 1  # layers: each more saves less and takes as long to compile
AROUND = "Norm", "RotaryEmbedding"  # ends of names
SETTINGS = {"combo_kernels": True}  # of inductor: queries and keys are rotated by one kernel
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a layer, behind the hidden states
Forward = Callable[..., Any]
Compiler = Callable[..., Any]  # of a graph, given examples of its inputs

# Kept as long as the model lives: engines are built often.
_COMPILED: WeakKeyDictionary[PreTrainedModel, dict[str, StandIns]] = WeakKeyDictionary()


def _stretch(layers: Sequence[nn.Module], run: Forward) -> Iterator[tuple[nn.Module, Forward]]:
    """Yields each layer with what stands for its forward pass: all run when the last is called."""
    deferred: list[Arguments] = []

    def defer(index: int, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        deferred[index:] = [(args, kwargs)]  # a pass that failed may have left some
        return hidden

    def run_all(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls = *deferred, (args, kwargs)
        deferred.clear()
        return run(layers, hidden, calls)

    *first, last = layers
    yield from ((each, partial(defer, index)) for index, each in enumerate(first))
    yield last, run_all


def _run_stretch(layers: Sequence[nn.Module], hidden: Tensor, calls: Sequence[Arguments]) -> Any:
    for layer, (args, kwargs) in zip(layers, calls, strict=True):
        hidden = type(layer).forward(layer, hidden, *args, **kwargs)
    return hidden


def compiled_layers(model: PreTrainedModel, backend: str) -> StandIns:
    """Returns a context in which the layers of a model, which are uniform, run compiled."""
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
    if not _are_chained(model, layers):
        forward = _compiled(type(layers[0]).forward, backend)
        yield from ((each, forward.__get__(each)) for each in layers)
        return
    run = _compiled(_run_stretch, backend)
    sizes = STRETCHES if _is_large(model) else STRETCHES[-2:]
    size = next(each for each in sizes if len(layers) % each == 0)
    for first in range(0, len(layers), size):
        yield from _stretch(layers[first : first + size], run)


def _around(model: PreTrainedModel, layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Yields the layers' neighbours that launch several operators: last norm and rotary embedding."""
    name = next(name for name, each in model.named_modules() if each is layers[0])
    parent = model.get_submodule(".".join(name.split(".")[:-2]))
    yield from (each for each in parent.children() if type(each).__name__.endswith(AROUND))


@torch.inference_mode()
def _are_chained(model: PreTrainedModel, layers: Sequence[nn.Module]) -> bool:
    """Returns whether the model hands each layer, as the first argument, what the one before returned,
    and nothing but that tensor."""
    returned: list[Tensor] = []
    received: list[object] = []

    def step(hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        received.append(hidden)
        returned.append(hidden.clone())
        return returned[-1]

    tokens = torch.arange(2, device=model.device)[None]
    try:
        with Attached(model), StandIns((each, step) for each in layers):
            model(input_ids=tokens, position_ids=tokens, use_cache=False)
    except Exception:  # it expects more of a layer than one tensor
        return False
    pairs = zip(returned, received[1:], strict=False)
    return len(received) == len(layers) and all(old is new for old, new in pairs)


def _is_large(model: PreTrainedModel) -> bool:
    return model.num_parameters() >= LARGE


def least_tokens(model: PreTrainedModel) -> int:
    """Returns how many tokens the smallest compiled pass has: the compiler makes code for one apart,
    and a small model's single token is padded instead."""
    return 1 if _is_large(model) else 2


def uniform_layers(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """Returns the decoder's layers if they are all of one class, else an empty tuple."""
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
    compiled: Forward = torch.compile(own, dynamic=True, backend=backend)
    return compiled


def _quiet(backend: str) -> Compiler:
    """Returns the backend of that name without its warnings: advice such as to allow TF32 does not
    apply."""
    compiler = torch._dynamo.lookup_backend(backend)
    settings = import_module("torch._inductor.config").patch(SETTINGS)

    def compile_quietly(graph: GraphModule, examples: Any, **options: Any) -> Any:
        with warnings.catch_warnings(), settings:
            warnings.simplefilter("ignore")
            return compiler(_with_products_once(graph), examples, **options)

    return compile_quietly


def _with_products_once(traced: GraphModule) -> GraphModule:
    """Computes products of the same rows with the same weight only once: see `fused_linears`."""
    known: dict[object, Node] = {}
    for node in traced.graph.find_nodes(op="call_function", target=linear):
        first = known.setdefault((node.args, *node.kwargs.items()), node)
        if first is not node:
            node.replace_all_uses_with(first)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced
