"""Host tensors are real, tensors on CUDA are fake; this mode intercepts the operators of both.

A fake tensor has shape, dtype and device and no content, so what hangs on content (a sync) cannot be
answered, and what mixes devices is refused as a GPU would refuse it.
"""

from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.selftest.device.fake.ledger import Ledger

OURS = "batchproof"  # operators of the engine: their CUDA kernels are Python, and run
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
# Operators that pass for one launch although torch has them made of others.
ONE_LAUNCH = {"scaled_dot_product_attention"}
# Views and allocations whose schema does not say so.
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
SYNCS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
ANSWER = 1  # what a token, or anything else on the device, is when the host reads it


class Watch(TorchDispatchMode):
    """Enter it inside a `FakeTensorMode`."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self._pinned: set[int] = set()

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # `torch.compile` gives up where a mode of users is

    def __torch_dispatch__(
        self, func: OpOverload, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or TracingContext.try_get() is not None:  # a question; nothing runs
            return func(*args, **kwargs)
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        places = {each.device.type for each in tensors}
        if kwargs.get("device") is not None:
            places.add(torch.device(kwargs["device"]).type)
        if "cuda" not in places:
            return self._on_host(func, args, kwargs, tensors)
        if func.namespace == OURS:
            with self:
                return func.redispatch(CUDA, *args, **kwargs)
        if func.overloadpacket.__name__ not in ONE_LAUNCH:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in COPIES and len(places) > 1:
            return self._copy(func, args, kwargs)
        return self._on_device(func, args, kwargs, tensors)

    def _on_host(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        if any(isinstance(each, FakeTensor) for each in tensors):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "is_pinned":
            return _storage(args[0]) in self._pinned
        is_pinned = bool(kwargs.pop("pin_memory", False)) or name == "pin_memory"
        with unset_fake_temporarily():
            result = args[0].clone() if name == "pin_memory" else func(*args, **kwargs)
        if is_pinned:
            self._ledger.forbidden_in_capture("memory is pinned")
            self._pinned.add(_storage(result))
        return result

    def _copy(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Records a copy between host and device."""
        source = args[0] if func is TO_COPY else args[1]
        is_async = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        into = None if func is TO_COPY else args[0]
        host = source if source.device.type == "cpu" else into
        way = "to the device" if host is source else "to the host"
        if self._ledger.recording is not None:
            self._ledger.problem(f"a copy {way}")
        elif not is_async or (host is not None and _storage(host) not in self._pinned):
            self._ledger.problem(f"a copy {way} that waits (not of pinned memory, or not asynchronous)")
        if host is source:
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            if into is not None:
                return into.fill_(ANSWER)
            return torch.full(source.shape, ANSWER, dtype=kwargs.get("dtype") or source.dtype)

    def _on_device(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith("index"):
            self._check_indices(name, args)
        elif SYNCS.intersection(func.tags):
            self._ledger.problem(f"{name} waits for the device")
            if name == "_local_scalar_dense":
                dtype = args[0].dtype
                kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
                return kind(ANSWER)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            is_mixed = any(each.device.type == "cpu" and each.dim() for each in tensors)
            why = "tensors on the CPU and on CUDA" if is_mixed else str(error).splitlines()[0]
            self._ledger.problem(f"{name}: {why}")
            raise
        results = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        if name not in NO_LAUNCH and _launches(func, results, tensors):
            self._ledger.launch(name, tensors)
        self._ledger.made(results, tensors)
        return result

    def _check_indices(self, name: str, args: tuple[Any, ...]) -> None:
        for index in tree_leaves(args[1:]):
            if isinstance(index, Tensor):
                if index.dtype in (torch.bool, torch.uint8):
                    self._ledger.problem(f"{name} with a mask waits for the device")
                if index.device.type == "cpu" and index.dim():
                    self._ledger.problem(f"{name} of a tensor on CUDA with an index on the CPU")


def _launches(func: OpOverload, results: list[Tensor], tensors: list[Tensor]) -> bool:
    """Returns whether an operator launches nothing: a view or an empty allocation."""
    aliases = [each.alias_info for each in func._schema.returns]
    if aliases and all(each is not None and not each.is_write for each in aliases):
        return False
    if results:
        return any(each.numel() for each in results)
    return bool(tensors) and func._schema.is_mutable


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


TO_COPY = torch.ops.aten._to_copy.default
COPIES = {TO_COPY, torch.ops.aten.copy_.default}
