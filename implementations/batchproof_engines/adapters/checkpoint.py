"""The suite's model as a checkpoint on disk, for engines that take a folder instead of an object."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from batchproof.decoding.adapters import ADAPTERS, save_adapters
from batchproof.decoding.speculation import HEAD, head_of
from batchproof_engines.adapters.word_tokenizer import words_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Engines are built often: each model is written once, in its state at that time.
_FOLDERS: WeakKeyDictionary[PreTrainedModel, Path] = WeakKeyDictionary()


def saved(model: PreTrainedModel) -> Path:
    """Returns a temporary folder with the model in its own dtype and a tokenizer (`word_tokenizer.py`).

    It exists as long as the model, and no longer than this process. A draft with a draft head has that
    in the folder `HEAD`, and a model with adapters each in a folder of its number in `ADAPTERS`.
    """
    folder = _FOLDERS.get(model)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="batchproof-"))
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        with _undisturbed(model):
            model.save_pretrained(folder)
        words_tokenizer(model.config.get_text_config().vocab_size).save_pretrained(folder)
        head = head_of(model)
        if head is not None:
            head.save(folder / HEAD)
        save_adapters(model, folder / ADAPTERS)
        _FOLDERS[model] = folder
    return folder


@contextmanager
def _undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Restores the model's config and the progress bar, which saving alters.

    An engine that needs a checkpoint must leave both as they were.
    """
    from transformers.utils import logging  # noqa: PLC0415 (slow to import)

    config, has_bar = model.config, logging.is_progress_bar_enabled()
    model.config = copy.deepcopy(config)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        model.config = config
        if has_bar:
            logging.enable_progress_bar()
