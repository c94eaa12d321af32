"""The model that goes along with a script: the embedded ones are saved, once in each folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from batchproof.models.catalogue import ModelUnderTest, load_model, moved


def model_text(subject: ModelUnderTest, directory: Path) -> str:
    """What a script gives to `from_pretrained`, as Python text. Saves the model if it is not there."""
    if not subject.is_embedded:
        is_path = Path(subject.name).exists()
        return repr(str(Path(subject.name).resolve()) if is_path else subject.name)
    name = f"{subject.name}-{subject.dtype_name}"
    target = directory / "models" / name
    if not target.exists():
        _save(subject, target)
    return f'Path(__file__).parent / "models" / "{name}"'


def untouched(subject: ModelUnderTest) -> PreTrainedModel:
    """Made anew where that costs little, for an engine may have changed the one under test."""
    if not subject.is_embedded:
        return subject.model
    return _fresh(subject.name, subject.model.device, subject.model.dtype)


@cache
def _fresh(name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    return load_model(name, device, dtype).model


def _save(subject: ModelUnderTest, target: Path) -> None:
    """A rename is atomic: of two processes one is first, and both have saved the same."""
    fresh = untouched(subject)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    fresh.save_pretrained(made)
    _require_same(fresh, reload(made, fresh))
    made.chmod(0o755)
    try:
        os.rename(made, target)
    except OSError:  # another process was first
        shutil.rmtree(made)


def reload(path: Path, like: PreTrainedModel) -> PreTrainedModel:
    """As a script does. `to` comes after loading, for it also rounds buffers, such as RoPE's."""
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=like.dtype, attn_implementation=like.config._attn_implementation
    )
    return moved(model, like.device, like.dtype).eval()


def _require_same(model: PreTrainedModel, again: PreTrainedModel) -> None:
    pairs = zip(
        (*model.named_parameters(), *model.named_buffers()),
        (*again.named_parameters(), *again.named_buffers()),
        strict=True,
    )
    for (name, old), (_, new) in pairs:
        assert old.dtype is new.dtype, f"{name} comes back in another dtype"
        assert torch.equal(old, new), f"{name} comes back with other bits"
