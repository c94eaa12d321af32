"""Copies of a model that round as engines do: weights, activations, and cached keys and values, in the
formats in which open-weight models are served.

Each format is the simplest of its family: scales from the largest value, without calibration. That is
what engines do who quantise while they load; calibrated weights (GPTQ, AWQ) round a little less.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof.models.by_module import ByModule
from batchproof.models.cached_states import read_as, reading
from batchproof.models.catalogue import ModelUnderTest, moved, resolve_dtype
from batchproof.oracle.precision import AS_SERVED, Precision

NUM_LEVELS = 255  # steps between the ends of what 8 bits hold
LARGEST_FP8 = 448.0  # of float8_e4m3fn
BLOCK = 32  # weights that share a scale, as in the formats Q8_0 and Q4_0 of llama.cpp
Format = Callable[[Tensor], Tensor]  # rounds along the last dimension; the shape and dtype stay


def coarse(model: PreTrainedModel, precision: Precision) -> PreTrainedModel:
    """Returns the model under test, or a copy that rounds at this precision."""
    if precision == AS_SERVED:
        return model
    dtype = resolve_dtype(precision.compute) if precision.compute else model.dtype
    model = moved(copy.deepcopy(model), model.device, dtype)
    ends = _ends(model)
    with torch.no_grad():
        for module in model.modules() if precision.weights else ():
            for weight in module.parameters(recurse=False):
                weight.copy_(_rounded(module, weight, precision, ends))
    _round_inputs(model, precision, ends)
    if precision.kv_cache is not None:
        # Rounding once is the same as rounding at each step: the rounded values do not change.
        read_as(model, precision.kv_cache, CACHES[precision.kv_cache])
    return model


def coarse_to_score(subject: ModelUnderTest, precision: Precision) -> Callable[..., Any]:
    """Returns what scores at this precision, as `coarse` does, without a copy of a large model."""
    if not subject.is_large:
        return coarse(subject.model, precision)
    dtype = resolve_dtype(precision.compute) if precision.compute else subject.model.dtype
    ends = _ends(subject.model)

    def change(module: nn.Module, weight: Tensor) -> Tensor:
        return _rounded(module, weight.to(dtype), precision, ends)

    @contextmanager
    def within(model: PreTrainedModel) -> Iterator[None]:
        with ExitStack() as stack:
            if precision.kv_cache is not None:
                stack.enter_context(reading(model, CACHES[precision.kv_cache]))
            for hook in _round_inputs(model, precision, ends):
                stack.enter_context(hook)
            yield

    return ByModule(subject.model, dtype, change, within)


def _ends(model: PreTrainedModel) -> frozenset[int]:
    """Returns the identities of embeddings and head, which formats mostly leave alone."""
    return frozenset(id(each) for each in (model.get_input_embeddings(), model.get_output_embeddings()))


def _rounded(module: nn.Module, weight: Tensor, precision: Precision, ends: Collection[int]) -> Tensor:
    """Returns a weight of a module: rounded, if it is a matrix of a layer."""
    is_end = id(module) in ends or isinstance(module, nn.Embedding)
    is_kept = is_end and not precision.has_rounded_ends
    if precision.weights is None or weight.ndim < 2 or is_kept:
        return weight
    rounds = WEIGHTS[precision.weights]
    is_transposed = isinstance(module, Conv1D)  # (in, out)
    return rounds(weight.T).T if is_transposed else rounds(weight)


def _round_inputs(
    model: PreTrainedModel, precision: Precision, ends: Collection[int]
) -> list[RemovableHandle]:
    """Lets each layer of FP8 weights round what it multiplies with them as well, token by token."""
    if precision.weights != "fp8":
        return []
    return [
        module.register_forward_pre_hook(lambda _, given: (_in_fp8(given[0]), *given[1:]))
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and id(module) not in ends
    ]


def in_8_bits(states: Tensor) -> Tensor:
    """Rounds `states`, `(..., head_dim)`, to the nearest of 256 values between the least and the
    greatest of each token and head: asymmetric 8-bit quantization. The shape stays.

    Their distance is kept in float16, as by llama.cpp's q8_0. In full precision the two values of a
    constructed model, which are the ends, would be exact, and those of no engine are.
    """
    low, high = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)
    unit = ((high - low) / NUM_LEVELS).half().clamp_min(torch.finfo(torch.float16).tiny)
    unit = unit.to(states.dtype)
    return ((states - low) / unit).round() * unit + low


def _in_fp8(values: Tensor) -> Tensor:
    """Rounds to float8 (e4m3), with a scale for each row, (..., row)."""
    scale = (values.abs().amax(-1, keepdim=True).float() / LARGEST_FP8).clamp_min(1e-12)
    rounded = (values.float() / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.to(values.dtype)


def _cached_in_fp8(states: Tensor) -> Tensor:
    """Rounds to float8 (e4m3) as it is: the scale of a cache is 1 where nobody has calibrated it."""
    held = states.float().clamp(-LARGEST_FP8, LARGEST_FP8)
    return held.to(torch.float8_e4m3fn).to(states.dtype)


def _in_blocks(num_steps: int) -> Format:
    """Rounds blocks of `BLOCK` weights to multiples of a scale in float16, from `-num_steps` to
    `num_steps`. A last block may be shorter."""

    def rounds(weight: Tensor) -> Tensor:
        padded = nn.functional.pad(weight.float(), (0, -weight.shape[-1] % BLOCK))
        blocks = padded.unflatten(-1, (-1, BLOCK))
        scale = (blocks.abs().amax(-1, keepdim=True) / num_steps).half().float()
        scale = scale.clamp_min(torch.finfo(torch.float16).tiny)
        rounded = (blocks / scale).round().clamp(-num_steps, num_steps) * scale
        return rounded.flatten(-2)[..., : weight.shape[-1]].to(weight.dtype)

    return rounds


WEIGHTS: Mapping[str, Format] = {"fp8": _in_fp8, "int8": _in_blocks(127), "int4": _in_blocks(7)}
CACHES: Mapping[str, Format] = {"fp8": _cached_in_fp8, "int8": in_8_bits, "int4": _in_blocks(7)}
