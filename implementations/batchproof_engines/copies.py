"""Changed copies of models: the suite's own model stays as it is."""

from collections.abc import Callable
from copy import deepcopy
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel


class Copies:
    """One changed copy of each model, made when it is first needed."""

    def __init__(self, change: Callable[[PreTrainedModel], PreTrainedModel]) -> None:
        self._change = change
        self._known: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()

    def of(self, model: PreTrainedModel) -> PreTrainedModel:
        if model not in self._known:
            self._known[model] = self._change(deepcopy(model))
        return self._known[model]
