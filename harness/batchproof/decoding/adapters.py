"""Low-rank adapters of a model that are known before it is served, for servers that load theirs when
they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

ADAPTERS = "adapters"  # the folder of them, beside the weights of a checkpoint
_KNOWN: WeakKeyDictionary[PreTrainedModel, tuple[int, Callable[[Path, int], None]]] = (
    WeakKeyDictionary()
)


def register_adapters(model: PreTrainedModel, count: int, save: Callable[[Path, int], None]) -> None:
    """Lets a model have adapters 1 to `count`; `save(folder, number)` writes one as PEFT does."""
    _KNOWN[model] = count, save


def save_adapters(model: PreTrainedModel, folder: Path) -> int:
    """Writes each adapter of a model to a folder of its number in `folder`. Returns how many there
    are."""
    count, save = _KNOWN.get(model, (0, None))
    for number in range(1, count + 1):
        assert save is not None, "it has adapters"
        one = folder / str(number)
        one.mkdir(parents=True)
        save(one, number)
    return count
