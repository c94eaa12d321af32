"""What there is, where it is installed, and how it gets there."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from batchproof.places import ENVIRONMENTS

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Released:
    """`title`: as its maker writes it."""

    title: str
    maker: str
    program: Path | None  # None: the library is a server itself
    requirements: Path
    unwanted: tuple[str, ...] = ()  # packages that others ask for and that cannot be imported here


SHELF = {
    "openvino": Released(
        "OpenVINO GenAI",
        "Intel",
        HERE / "programs" / "openvino_genai_cb.py",
        HERE / "openvino.txt",
        ("torchvision",),
    ),
    "ctranslate2": Released(
        "CTranslate2",
        "OpenNMT",
        HERE / "programs" / "ctranslate2_generator.py",
        HERE / "ctranslate2.txt",
    ),
    "onnxruntime": Released(
        "ONNX Runtime GenAI",
        "Microsoft",
        HERE / "programs" / "onnxruntime_genai_engine.py",
        HERE / "onnxruntime.txt",
    ),
    "transformers-serve": Released(
        "transformers serve", "Hugging Face", None, HERE / "transformers-serve.txt"
    ),
}


def interpreter(name: str) -> str | None:
    """The Python that has the library; None if it was not installed, or not to the end."""
    folder = ENVIRONMENTS / name
    return str(_python(folder)) if _done(folder).exists() else None


def install(name: str) -> Path:
    """Make its environment anew, with exactly what its requirements pin. Raises `CalledProcessError`
    if pip fails; what pip says is on the screen."""
    folder = ENVIRONMENTS / name
    _done(folder).unlink(missing_ok=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(_python(folder)), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "-r", str(SHELF[name].requirements)], check=True)
    if SHELF[name].unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *SHELF[name].unwanted], check=True)
    _done(folder).touch()
    return folder


def _python(folder: Path) -> Path:
    is_windows = sys.platform == "win32"
    return folder / ("Scripts/python.exe" if is_windows else "bin/python")


def _done(folder: Path) -> Path:
    """Written last: without it, pip was stopped on its way."""
    return folder / ".complete"
