"""Tiny models with random weights, and low-rank adapters for those whose layers are named as a
Llama's."""

import math

import torch
from torch import nn
from transformers import PreTrainedModel

from batchproof.decoding.adapters import SCALE, Layers, LowRank
from batchproof.models.catalogue import build_model
from batchproof.models.shapes import RANDOM

RANK = 4
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


def build(name: str) -> PreTrainedModel:
    return build_model(RANDOM[name].config(), torch.device("cpu"), torch.float32)


def low_rank(model: PreTrainedModel, number: int) -> Layers:
    """Yields what adapter `number` adds: to each of the layers about as much as it has."""
    drawn = torch.Generator().manual_seed(number)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name.endswith(TARGETS):
            # The same power of two in every dtype.
            size = 2.0 ** round(math.log2(float(layer.weight.std()) / (SCALE * math.sqrt(RANK))))
            a = torch.randn(RANK, layer.in_features, generator=drawn)
            b = torch.randn(layer.out_features, RANK, generator=drawn)
            yield name, LowRank(a, size * b)
