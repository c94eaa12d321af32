"""A model that computes with other weights than it holds, of which one module's exist at a time.

A float64 copy of a model of 8 billion parameters takes 64 GB, and a rounded one another 16. Here the
copy of a module is made when it is called, and dropped when it returns.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

Change = Callable[[nn.Module, Tensor], Tensor]


class ByModule:
    """Computes in `dtype` with the weights that `change` makes of a module's own, given the module and
    one of its weights. `within` holds while it computes.

    Not for models in which a module reads the weights of another, such as the convolutions of Mamba.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        change: Change = lambda _, weight: weight,
        within: Callable[[PreTrainedModel], Any] | None = None,
    ) -> None:
        self._model, self._dtype, self._change, self._within = model, dtype, change, within
        self.device = model.device

    def __call__(self, **inputs: Any) -> Any:
        with ExitStack() as stack:
            if self._within is not None:
                stack.enter_context(self._within(self._model))
            for module in self._model.modules():
                if [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                    stack.enter_context(self._replacing(module))
            return self._model(**inputs)

    @contextmanager
    def _replacing(self, module: nn.Module) -> Iterator[None]:
        """Changes the weights of a module whenever it is called; what an embedding gives, not its
        table, of which it reads a few rows."""
        if isinstance(module, nn.Embedding):

            def changed(module: nn.Module, _: Any, rows: Tensor) -> Tensor:
                return self._change(module, rows).to(self._dtype)

            with module.register_forward_hook(changed):
                yield
            return
        held: list[tuple[dict[str, Any], dict[str, Any]]] = []

        def before(module: nn.Module, _: Any) -> None:
            for kept in (module._parameters, module._buffers):
                held.append((kept, dict(kept)))
                kept.update({name: self._changed(module, each) for name, each in kept.items()})

        def after(*_: Any) -> None:
            while held:
                kept, own = held.pop()
                kept.update(own)

        with (
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ):
            yield

    def _changed(self, module: nn.Module, weight: Any) -> Any:
        if weight is None or not weight.is_floating_point():
            return weight
        if isinstance(weight, nn.Parameter):
            changed = self._change(module, weight.detach()).to(self._dtype)
            return nn.Parameter(changed, requires_grad=False)
        return weight.to(self._dtype)
