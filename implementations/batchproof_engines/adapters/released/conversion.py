"""Converts a checkpoint into what a server reads, once beside the checkpoint, in the library's own
environment."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from batchproof.errors import UnsupportedModelError
from batchproof_engines.adapters.released.libraries import Conversion
from batchproof_engines.adapters.released.serving import made_once

LIMIT_S = 600.0


def converted(conversion: Conversion, folder: Path, places: Mapping[str, str]) -> Path:
    """Returns the converted model. `places` fill in the command, but for `{model}`.

    Raises `UnsupportedModelError` with the last line of a converter that fails. It is asked only once:
    the reason stays beside the checkpoint.
    """
    target = folder / conversion.model.format(**places)
    reason = target.with_name(f"{target.name}.refused")

    def make(made: Path) -> None:
        command = [each.format(**{**places, "model": str(made)}) for each in conversion.command]
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
        if ran.returncode != 0:
            lines = (ran.stderr + ran.stdout).strip().splitlines()
            why = lines[-1] if lines else f"it ended with status {ran.returncode}"
            reason.write_text(why, encoding="utf-8")
            raise refusal()

    def refusal() -> UnsupportedModelError:
        why = reason.read_text(encoding="utf-8")
        return UnsupportedModelError(f"its converter does not take the model: {why}")

    if reason.exists():
        raise refusal()
    return made_once(target, make)
