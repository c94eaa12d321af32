"""Checkpoints in place of embedded models: folders and repositories of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from batchproof.errors import UsageError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)  # owner/name
BROKEN = (OSError, ValueError, KeyError)


@contextmanager
def without_bars() -> Iterator[None]:
    """Hides the progress bars of transformers, which cut through the output of a test session."""
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()


def load_checkpoint(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the causal LM in a folder or of a name on the hub. Raises `UsageError` with the reason
    if there is none.
    """
    if not Path(name).is_dir() and not HUB_NAME.fullmatch(name):
        raise UsageError("there is no such folder, and a name of the hub reads owner/name")
    try:
        with without_bars():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except BROKEN as error:
        first_line = str(error).strip().splitlines()[0]
        raise UsageError(f"it could not be loaded: {first_line}") from error
    return model


def load_tokenizer(name: str) -> PreTrainedTokenizerBase | None:
    """Returns None for a checkpoint without a tokenizer: its text prompts are bytes."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except BROKEN:
        return None
    # Where files are missing, transformers 5 may return a tokenizer without a vocabulary.
    return tokenizer if tokenizer.encode("a") else None
