"""How the engine's attention gets into a model: as one function registered with transformers.

`AttentionInterface` passes every layer's rotated queries and unrepeated keys and values to the function
that the config names. Ours has no counterpart among transformers' masks, so no mask is built. The batch
they belong to cannot be passed through all models, so it is kept in a context variable during a forward
pass. Layers are numbered in the order in which they attend: a number passed by the layer would be a
constant to a compiler, and one compiled layer could not serve all.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from batchproof.errors import UnsupportedModelError
from batchproof_paged.batch import RaggedBatch


class StandIns(AbstractContextManager[None]):
    """A context, which may be entered again, in which functions stand for the `forward` of modules."""

    def __init__(self, pairs: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> None:
        self._pairs = tuple(pairs)

    def __enter__(self) -> None:
        # In the instance's dictionary, which takes precedence: the class is shared with other models.
        for module, forward in self._pairs:
            module.__dict__["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for module, _forward in self._pairs:
            del module.__dict__["forward"]


def runs_its_class(module: nn.Module, *classes: type[nn.Module]) -> bool:
    """Returns whether a call of the module is the forward pass of its class and nothing else: neither
    another function nor a hook. If `classes` are given, it must be one of them."""
    is_hooked = module._forward_pre_hooks or module._forward_hooks
    is_own = not is_hooked and "forward" not in module.__dict__
    return is_own and (not classes or type(module) in classes)


NAME = "batchproof_paged"


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """What a layer asks for besides queries, keys and values."""

    scaling: float
    window: int | None = None  # the most keys that a query sees, its own included
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # (num_heads,): an additional logit per head, which has no value


class Asked(NamedTuple):
    """What a layer asks attention for."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    form: AttentionForm

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Self:
        """The tensors are those of `Backend.attend`."""
        _, num_kv_heads, key_size = key.shape
        return cls(query.shape[1], num_kv_heads, key_size, value.shape[2], form)


class Backend(Protocol):
    """Stores keys and values of all running sequences, with the kernels that read them."""

    def begin(self, batch: RaggedBatch) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        """Stores the T fed tokens' keys and values, and lets each row's queries see those of their
        sequence.

        `query` is (T, num_heads, qk_dim), `key` (T, num_kv_heads, qk_dim), `value` (T, num_kv_heads,
        v_dim), packed as in the batch; returns (T, num_heads, v_dim).
        """
        ...


class NullBackend:
    """A backend that computes nothing, and notes what is asked for: a pass that looks at operators
    needs no values."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def begin(self, batch: RaggedBatch) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        del layer
        self.asked.append(Asked.of(query, key, value, form))
        return query.new_zeros(*query.shape[:2], value.shape[2])


@dataclass(slots=True)
class Pass:
    """A forward pass: the backend that attention uses, and the number of layers that have attended."""

    backend: Backend
    num_layers: int = 0


_CURRENT: ContextVar[Pass] = ContextVar("the current forward pass")


@contextmanager
def passing_to(backend: Backend) -> Iterator[Pass]:
    """A context for one forward pass in inference mode, whose attention uses this backend."""
    current = Pass(backend)
    token = _CURRENT.set(current)
    try:
        with torch.inference_mode():
            yield current
    finally:
        _CURRENT.reset(token)


# A torch operator, so that it remains one call when the model around it is traced or compiled.
_LIBRARY = torch.library.Library("batchproof", "DEF")
_LIBRARY.define(
    "attend(Tensor query, Tensor key, Tensor value, float scaling, int? window, float? softcap, "
    "Tensor? sinks) -> Tensor"
)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attends for the next layer: `query` (B, num_heads, T, qk_dim) etc. -> (B, T, num_heads, v_dim).

    The B * T tokens are those of the packed batch, whatever shape the model gives them.
    """
    current = _CURRENT.get()
    layer, current.num_layers = current.num_layers, current.num_layers + 1
    form = AttentionForm(scaling, window, softcap, sinks)
    shape = query.shape[0], query.shape[2]
    query, key, value = [each.transpose(1, 2).flatten(0, 1) for each in (query, key, value)]
    result = current.backend.attend(layer, query, key, value, form)
    return result.view(*shape, *result.shape[1:])


def _shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:  # noqa: ARG001
    """Returns an empty tensor of the shape of `_attend`'s result, for compilers, which do not run
    it."""
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


_LIBRARY.impl("attend", _attend, "CompositeExplicitAutograd")  # the same for all devices
torch.library.register_fake("batchproof::attend", _shape, lib=_LIBRARY)


def _attention(
    module: nn.Module,  # noqa: ARG001 - layers are numbered by the order of calls
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - for training only
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unknown: Any,  # noqa: ARG001 - meant for other attention functions
) -> tuple[Tensor, None]:
    if attention_mask is not None:
        raise UnsupportedModelError("it builds an attention mask of its own")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    attend = torch.ops.batchproof.attend.default
    return attend(query, key, value, scaling, sliding_window, softcap, s_aux), None


AttentionInterface.register(NAME, _attention)


class Attached:
    """A context in which a model uses our attention instead of its own."""

    def __init__(self, model: PreTrainedModel, name: str = NAME) -> None:
        self._name = name
        configs = [module.config for module in model.modules() if hasattr(module, "config")]
        unique = {id(config): config for config in configs if isinstance(config, PreTrainedConfig)}
        self._configs = tuple(unique.values())

    def __enter__(self) -> None:
        self._own = [config._attn_implementation_internal for config in self._configs]
        for config in self._configs:
            config._attn_implementation_internal = self._name

    def __exit__(self, *_: object) -> None:
        for config, own in zip(self._configs, self._own, strict=True):
            config._attn_implementation_internal = own
