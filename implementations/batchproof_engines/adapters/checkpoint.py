"""The suite's model as a checkpoint on disk, for engines that take a folder instead of an object."""

from __future__ import annotations

import copy
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from batchproof.decoding.adapters import ADAPTERS, save_adapters
from batchproof.decoding.speculation import HEAD, head_of
from batchproof_engines.adapters.byte_tokenizer import BYTES, NUM_BYTES, bytes_tokenizer
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
    from batchproof.models.catalogue import without_bars  # noqa: PLC0415 (slow to import)

    folder = _FOLDERS.get(model)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="batchproof-"))
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        config = model.config
        model.config = copy.deepcopy(config)  # which saving alters
        try:
            with without_bars():
                model.save_pretrained(folder)
        finally:
            model.config = config
        vocab_size = model.config.get_text_config().vocab_size
        words_tokenizer(vocab_size).save_pretrained(folder)
        if vocab_size == NUM_BYTES:  # beside a config, as tokenizers are found by one
            bytes_tokenizer().save_pretrained(folder / BYTES)
            shutil.copy(folder / "config.json", folder / BYTES)
        head = head_of(model)
        if head is not None:
            head.save(folder / HEAD)
        save_adapters(model, folder / ADAPTERS)
        _FOLDERS[model] = folder
    return folder
