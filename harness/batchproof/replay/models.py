"""The model of a stand-alone script. An embedded one is saved beside it, once in each folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from batchproof.models.catalogue import ModelUnderTest, load_model
from batchproof.models.checkpoints import without_bars


def model_reference(subject: ModelUnderTest, directory: Path) -> str:
    """Returns what the script passes to `from_pretrained`, as Python text. Saves an embedded model if
    needed.
    """
    if not subject.is_embedded:
        path = Path(subject.name)
        return repr(str(path.resolve()) if path.exists() else subject.name)
    name = f"{subject.name}-{subject.dtype_name}"
    target = directory / "models" / name
    if not target.exists():
        _save(subject, target)
    return f'Path(__file__).parent / "models" / "{name}"'


def _save(subject: ModelUnderTest, target: Path) -> None:
    """Saves a newly made model, because an engine may have changed the one under test.

    A rename is atomic: of two processes one is first, and both have saved the same.
    """
    fresh = load_model(subject.name, subject.model.device, subject.model.dtype).model
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    with without_bars():
        fresh.save_pretrained(made)
    made.chmod(0o755)
    try:
        made.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(made)
