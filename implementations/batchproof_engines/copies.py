"""Copies of models in another dtype: the suite's own model stays as it is."""

from copy import deepcopy
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from batchproof.models.catalogue import moved

_KNOWN: WeakKeyDictionary[PreTrainedModel, dict[torch.dtype, PreTrainedModel]] = WeakKeyDictionary()


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Returns a copy of the model in the dtype, made when it is first needed."""
    known = _KNOWN.setdefault(model, {})
    if dtype not in known:
        known[dtype] = moved(deepcopy(model), model.device, dtype)
    return known[dtype]
