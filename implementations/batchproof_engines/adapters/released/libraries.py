"""The released libraries: which there are, where they are installed, and how they are installed."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from batchproof.places import ENVIRONMENTS

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ReleasedLibrary:
    """A library; `title` is its name as its maker writes it."""

    title: str
    maker: str
    program: Path | None  # None: the library is itself a server
    requirements: Path
    unwanted: tuple[str, ...] = ()  # dependencies that cannot be imported here


LIBRARIES = {
    "openvino": ReleasedLibrary(
        "OpenVINO GenAI",
        "Intel",
        HERE / "programs" / "openvino_genai_cb.py",
        HERE / "openvino.txt",
        ("torchvision",),
    ),
    "ctranslate2": ReleasedLibrary(
        "CTranslate2",
        "OpenNMT",
        HERE / "programs" / "ctranslate2_generator.py",
        HERE / "ctranslate2.txt",
    ),
    "onnxruntime": ReleasedLibrary(
        "ONNX Runtime GenAI",
        "Microsoft",
        HERE / "programs" / "onnxruntime_genai_engine.py",
        HERE / "onnxruntime.txt",
    ),
    "transformers-serve": ReleasedLibrary(
        "transformers serve", "Hugging Face", None, HERE / "transformers-serve.txt"
    ),
}


def interpreter(name: str) -> str | None:
    """Returns the Python that has the library, or None if its installation is missing or incomplete."""
    folder = ENVIRONMENTS / name
    return str(_python(folder)) if _done(folder).exists() else None


def install(name: str) -> Path:
    """Creates the library's environment anew, with exactly the pinned requirements, and returns its
    folder.

    Raises `CalledProcessError` if pip fails; pip's output is on the screen.
    """
    folder = ENVIRONMENTS / name
    _done(folder).unlink(missing_ok=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(_python(folder)), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "-r", str(LIBRARIES[name].requirements)], check=True)
    if LIBRARIES[name].unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *LIBRARIES[name].unwanted], check=True)
    _done(folder).touch()
    return folder


def _python(folder: Path) -> Path:
    is_windows = sys.platform == "win32"
    return folder / ("Scripts/python.exe" if is_windows else "bin/python")


def _done(folder: Path) -> Path:
    """Returns the file that is written last: without it, the installation was interrupted."""
    return folder / ".complete"
