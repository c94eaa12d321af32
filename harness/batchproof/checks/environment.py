"""What an engine may use while it works and must leave as it was (promise P15)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from batchproof.checks.broken import require
from batchproof.findings.finding import Finding, Rule, found

MIXED = "set by the old way and by the new"


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of torch.

    `place` is an attribute, or a call that reads it; `setter` a function or attribute that sets it
    where the place does not. `exact` is its position for comparisons; None: any.
    """

    name: str
    place: str
    setter: str | None = None
    exact: Any = None

    def read(self) -> Any:
        """Returns the position; `MIXED` where torch refuses to read an old switch of TF32 because a
        new one disagrees."""
        try:
            value = _at(self.place.removesuffix("()"))
            return value() if self.place.endswith("()") else value
        except RuntimeError:
            return MIXED

    def write(self, value: Any) -> None:
        if self._is_call:
            _at(self._where)(value)
        else:
            owner, _, name = self._where.rpartition(".")
            setattr(_at(owner), name, value)

    @property
    def _where(self) -> str:
        return self.setter or self.place

    @property
    def _is_call(self) -> bool:
        return self.setter is not None and callable(_at(self.setter))

    @property
    def is_here(self) -> bool:
        """Whether this torch has the switch."""
        try:
            self.read()
        except AttributeError:
            return False
        return True


def _at(path: str) -> Any:
    return _getter(path)(torch)


@cache
def _getter(path: str) -> attrgetter[Any]:
    return attrgetter(path.removeprefix("torch."))


def _usual() -> Iterator[Switch]:
    yield Switch("default dtype", "torch.get_default_dtype()", "torch.set_default_dtype")
    yield Switch("default device", "torch.get_default_device()", "torch.set_default_device")
    yield Switch("number of threads", "torch.get_num_threads()", "torch.set_num_threads")
    yield Switch("grad mode", "torch.is_grad_enabled()", "torch.set_grad_enabled")
    yield Switch("autocast on CUDA", "torch.is_autocast_enabled()", "torch.set_autocast_enabled")
    debug_mode = "deterministic_debug_mode"
    yield Switch("deterministic algorithms", f"torch.get_{debug_mode}()", f"torch.set_{debug_mode}")
    filling = "torch.utils.deterministic.fill_uninitialized_memory"
    yield Switch("filling of uninitialized memory", filling)


def _rounding() -> Iterator[Switch]:
    """Yields the switches of rounding.

    An old switch of TF32 sets new ones as well, so it is set back before them; of those the general
    one comes before the special ones.
    """
    precision = "float32_matmul_precision"
    yield Switch(
        "float32 matmul precision", f"torch.get_{precision}()", f"torch.set_{precision}", "highest"
    )
    yield Switch("TF32 in cuDNN", "torch.backends.cudnn.allow_tf32", exact=False)
    for where in ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"):
        yield Switch(f"float32 precision of {_backend(where)}", _backend(where, "fp32_precision"))
    for where in ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"):
        yield Switch(f"float32 precision of {_backend(where)}", _backend(where, "fp32_precision"))
    for dtype in ("bf16", "fp16"):
        # A long sum may be split into parts, but these are not added in 16 bits: a batch is split
        # differently from a single row, with which rounding is measured.
        option = f"allow_{dtype}_reduced_precision_reduction"
        place, setter = f"torch._C._get_cublas_{option}()", _backend("cuda.matmul", option)
        yield Switch(f"reductions in {dtype}", place, setter, exact=(False, True))
    yield Switch("sums in fp16", _backend("cuda.matmul", "allow_fp16_accumulation"), exact=False)
    option = _backend("cuda", "{}fp16_bf16_reduction_math_sdp{}")
    place, setter = option.format("", "_allowed()"), option.format("allow_", "")
    yield Switch("reductions of math attention", place, setter, exact=False)


def _libraries() -> Iterator[Switch]:
    """Yields the switches that choose the library that computes."""
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        place = _backend("cuda", f"{kind}_sdp_enabled()")
        yield Switch(f"SDPA backend {kind}", place, _backend("cuda", f"enable_{kind}_sdp"))
    for kind in ("blas", "linalg"):
        setter = _backend("cuda", f"preferred_{kind}_library")
        yield Switch(f"preferred {kind} library", f"{setter}()", setter)
    for where in ("cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic"):
        yield Switch(_backend(where), _backend(where))
    for where in ("mkldnn.enabled", "mkldnn.deterministic", "opt_einsum.enabled"):
        yield Switch(_backend(where), _backend(where))
    fastpath = "fastpath_enabled"
    place, setter = (_backend("mha", f"{each}_{fastpath}") for each in ("get", "set"))
    yield Switch("fast path of MultiheadAttention", f"{place}()", setter)


def _backend(*names: str) -> str:
    return ".".join(filter(None, ("torch.backends", *names)))


SWITCHES = tuple(each for each in (*_usual(), *_rounding(), *_libraries()) if each.is_here)
EXACT = tuple(each for each in SWITCHES if each.exact is not None)


def positions() -> dict[str, Any]:
    """Returns all positions by name, the special before the general: the first difference found
    should be the most specific."""
    return {each.name: each.read() for each in reversed(SWITCHES)}


def set_back(before: Mapping[str, Any]) -> None:
    for each in SWITCHES:
        if each.read() != before[each.name]:
            each.write(before[each.name])


def compute_exactly() -> None:
    """Sets the switches so that torch computes in the dtype asked for, and a batch rounds no more
    than a row."""
    for each in EXACT:
        each.write(each.exact)


World = Mapping[str, Any]  # name of a thing -> a value that compares


def settings_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what is cheap to read: switches of the model and of torch."""
    return {
        "attention implementation": model.config._attn_implementation,
        "training mode": model.training,
        "forward method": getattr(model.forward, "__func__", model.forward),
        "inference mode": torch.is_inference_mode_enabled(),
    } | positions()


def model_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what belongs to the model, sums over all weights included. It is looked at after each
    test, so one walk has to do."""
    weights, num_hooks = dict[int, tuple[str, torch.Tensor]](), 0
    for prefix, module in model.named_modules():
        num_hooks += len(module._forward_hooks)
        for name, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is not None:  # one that several modules share counts once
                weights.setdefault(id(tensor), (f"{prefix}.{name}".lstrip("."), tensor))
    return {
        "weights and buffers": {name: _print_of(tensor) for name, tensor in weights.values()},
        "model config": model.config.to_dict(),
        "generation config": model.generation_config.to_dict(),
        "forward hooks": num_hooks,
    }


def _print_of(tensor: torch.Tensor) -> tuple[object, ...]:
    shape = tuple(tensor.shape)
    return tensor.dtype, tensor.device, shape, _sum_of_bits(tensor), tensor._version


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Returns an exact sum: one of large floats would depend on the number of threads."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(integers[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))


def process_of(before: World | None = None) -> dict[str, Any]:
    """Returns what belongs to the process: its directory, and the environment variables that are set.

    Of the variables, those that were set `before`: a library may add some of its own.
    """
    names = os.environ if before is None else before["environment variables"]
    return {
        "working directory": _directory(),
        "environment variables": {name: os.environ.get(name) for name in names},
    }


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


def shared_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns what all engines on one model share, except the number of threads, which a run chooses
    after it has loaded the model."""
    found = deepcopy(model_of(model)) | settings_of(model)  # a config may hand out parts of itself
    del found["number of threads"]
    return found


def world_of(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the model, the settings, and the states of all random generators."""
    return (
        deepcopy(model_of(model))
        | {
            "torch RNG": torch.get_rng_state().tolist(),
            "CUDA RNG": [state.tolist() for state in torch.cuda.get_rng_state_all()]
            if torch.cuda.is_available()
            else [],
            "Python RNG": random.getstate(),
            "numpy RNG": [str(part) for part in np.random.get_state()],
        }
        | settings_of(model)
    )


def world_findings(before: World, after: World, when: str) -> Iterator[Finding]:
    """Yields what differs in `after`; `before` may hold more, `when` is part of the message."""
    for name, value in after.items():
        if before[name] != value:
            yield found(Rule.WORLD, thing=name, when=when, changes=_difference(before[name], value))


def require_same(before: World, after: World, when: str) -> None:
    """Raises `BrokenPromise` at the first thing that differs, as in `world_findings`."""
    require(world_findings(before, after, when))


def put_back(model: PreTrainedModel, before: World) -> None:
    """Restores settings and process: not weights and config, and not an inference mode."""
    model.config._attn_implementation = before["attention implementation"]
    model.train(before["training mode"])
    if settings_of(model)["forward method"] is not before["forward method"]:
        vars(model).pop("forward", None)
        type(model).forward = before["forward method"]
    set_back(before)
    if before["working directory"] is not None:
        os.chdir(before["working directory"])
    os.environ.update(before["environment variables"])


def _difference(old: Any, new: Any) -> list[str]:
    if isinstance(old, dict):
        keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
        return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted(keys)[:3]]
    return [f"{str(old)[:60]} -> {str(new)[:60]}"]
