"""Builds a model of a shape (`batchproof.models.shapes`) on its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SEED = 0


def build_model(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Returns a model with random weights of `SEED`, in eval mode, without gradients. The global
    generators stay as they are.

    The weights are drawn on the device in the dtype, so they differ between devices and dtypes. The
    model is made in its dtype, not cast to it: a cast would also round RoPE's frequencies, which a
    16-bit model keeps in float32.
    """
    # MPS generators cannot be restored, so the weights come from the CPU's there.
    place = device if device.type in ("cpu", "cuda", "meta") else torch.device("cpu")
    with _own_generator(place), place:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.to(device=device).eval().requires_grad_(False)


@contextmanager
def _own_generator(device: torch.device) -> Iterator[None]:
    """Seeds the generators that weights are drawn from, and restores them afterwards."""
    gpus = []
    if device.type == "cuda":
        gpus = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(SEED)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(SEED)
        yield
