"""Checkpoints in place of embedded models: folders and repositories of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from batchproof.errors import UsageError

CONFIG = "config.json"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)  # owner/name
HUB_TIMEOUT_S = 5.0
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
    if not Path(name).is_dir():
        _require_on_hub(name)
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


def _require_on_hub(name: str) -> None:
    """Raises `UsageError` for a name that the hub cannot have, or does not have now. One request tells
    that in seconds; transformers repeats each of its own for half a minute.
    """
    if not HUB_NAME.fullmatch(name):
        raise UsageError("there is no such folder, and a name of the hub reads owner/name")
    if constants.HF_HUB_OFFLINE or isinstance(try_to_load_from_cache(name, CONFIG), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(name, CONFIG), timeout=HUB_TIMEOUT_S)
    except Exception as error:  # of the hub's HTTP library, which changes with its release
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"there is no such folder, and the hub does not give it: {reason}") from error
