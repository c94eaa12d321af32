"""What an engine may use while it works and must leave as it was (promise P15)."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
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
    """One switch of torch or numpy. `exact` is its position for comparisons; None: any."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]
    exact: Any = None

    def read(self) -> Any:
        """Returns the position; `MIXED` where an old switch of TF32 and a new one disagree."""
        try:
            return self.get()
        except RuntimeError:
            return MIXED


def _attribute(place: str, name: str | None = None, exact: Any = None) -> Switch:
    """Returns the switch that is an attribute below torch."""
    owner, _, last = place.rpartition(".")
    holder = attrgetter(owner)(torch)
    read, write = partial(getattr, holder, last), partial(setattr, holder, last)
    return Switch(name or f"torch.{place}", read, write, exact)


def _flushes_denormals() -> bool:
    least = 5e-324
    return least * 1.0 == 0.0


def _usual() -> Iterator[Switch]:
    yield Switch("default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Switch("default device", torch.get_default_device, torch.set_default_device)
    yield Switch("number of threads", torch.get_num_threads, torch.set_num_threads)
    yield Switch("grad mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Switch("anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled)
    for device in ("cuda", "cpu"):
        is_on = partial(torch.is_autocast_enabled, device)
        yield Switch(
            f"autocast on {device.upper()}", is_on, partial(torch.set_autocast_enabled, device)
        )
    yield Switch("flushing of denormals", _flushes_denormals, torch.set_flush_denormal)
    read, write = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield Switch("deterministic algorithms", read, write)
    filling = "utils.deterministic.fill_uninitialized_memory"
    yield _attribute(filling, "filling of uninitialized memory")
    yield Switch("error handling of numpy", np.geterr, lambda value: np.seterr(**value))


def _rounding() -> Iterator[Switch]:
    """Yields the switches of rounding. An old switch of TF32 sets new ones as well, so it is set back
    before them; of those the general one comes before the special ones."""
    matmul = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield Switch("float32 matmul precision", *matmul, "highest")
    yield _attribute("backends.cudnn.allow_tf32", "TF32 in cuDNN", exact=False)
    yield _attribute("backends.fp32_precision")
    for where in ("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"):
        yield _attribute(f"backends.{where}.fp32_precision")
    for where in ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"):
        yield _attribute(f"backends.{where}.fp32_precision")
    for dtype in ("bf16", "fp16"):
        # A long sum may be split into parts, but these are not added in 16 bits: a batch is split
        # differently from a single row, with which rounding is measured.
        option = f"allow_{dtype}_reduced_precision_reduction"
        write = _attribute(f"backends.cuda.matmul.{option}").set
        read = getattr(torch._C, f"_get_cublas_{option}")
        yield Switch(f"reductions in {dtype}", read, write, exact=(False, True))
    yield _attribute("backends.cuda.matmul.allow_fp16_accumulation", "sums in fp16", exact=False)
    cuda = torch.backends.cuda
    sdp = cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp
    yield Switch("reductions of math attention", *sdp, exact=False)


def _libraries() -> Iterator[Switch]:
    cuda, mha = torch.backends.cuda, torch.backends.mha
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        read, write = getattr(cuda, f"{kind}_sdp_enabled"), getattr(cuda, f"enable_{kind}_sdp")
        yield Switch(f"SDPA backend {kind}", read, write)
    for prefer in (cuda.preferred_blas_library, cuda.preferred_linalg_library):
        yield Switch(prefer.__name__.replace("_", " "), prefer, prefer)
    for where in ("cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic"):
        yield _attribute(f"backends.{where}")
    for where in ("mkldnn.enabled", "mkldnn.deterministic", "opt_einsum.enabled"):
        yield _attribute(f"backends.{where}")
    fast = "fast path of MultiheadAttention"
    yield Switch(fast, mha.get_fastpath_enabled, mha.set_fastpath_enabled)


SWITCHES = (*_usual(), *_rounding(), *_libraries())
EXACT = tuple(each for each in SWITCHES if each.exact is not None)


def positions() -> dict[str, Any]:
    """Returns all positions by name, the special before the general: the first difference found
    should be the most specific."""
    return {each.name: each.read() for each in reversed(SWITCHES)}


def set_back(before: Mapping[str, Any]) -> None:
    for each in SWITCHES:
        if each.read() != before[each.name]:
            each.set(before[each.name])


def compute_exactly() -> None:
    """Lets torch compute in the dtype asked for, and round in a batch no more than in a row."""
    for each in EXACT:
        each.set(each.exact)


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
    Of the variables, those that were set `before`: a library may add some of its own."""
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
