"""Weights of an engine that are replaced in place."""

import copy
from collections.abc import Sequence as Seq

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Weights:
    """A copy of a model for an engine of its own, from the first update on: the other is lent."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, source: PreTrainedModel, names: Seq[str] | None) -> None:
        """Copies the parameters of `source`, all or those of these names. Raises `ValueError` for a
        name that one of the models lacks, before anything is copied."""
        mine = dict(self.model.named_parameters(remove_duplicate=False))
        theirs = dict(source.named_parameters(remove_duplicate=False))
        wanted = [*theirs] if names is None else names
        for name in wanted:
            if name not in mine or name not in theirs:
                raise ValueError(f"parameter {name!r} is unknown")
        for name in wanted:
            self.take_over(name, mine[name], theirs[name])

    def take_over(self, name: str, mine: Tensor, theirs: Tensor) -> None:  # noqa: ARG002
        mine.copy_(theirs)
