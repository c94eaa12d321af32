"""`batchproof site DIR`: verdicts and benchmarks as static pages, without JavaScript.

`inputs` reads the files. `history` sorts verdicts by engine and release. `facts` and `findings` make
values that the pages show, each a pure function of records. `pages` renders them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.texts import counted
from batchproof.site.inputs import KNOWN, RESULTS, read_inputs
from batchproof.site.pages import pages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the pages go")
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[RESULTS],
        metavar="FILE|FOLDER",
        help=f"{KNOWN}; of a folder, all in it and below (default: {RESULTS}/)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the pages. Raises `UsageError` for a file that is missing, damaged or too new, for sources
    that hold nothing to show, and for a folder DIR that is not empty.
    """
    folder: Path = arguments.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"'{folder}' must be a new or an empty folder: delete it, or name another")
    inputs = read_inputs(arguments.paths)
    files = pages(inputs)
    _write(folder, files)
    shown = f"{counted(len(files), 'file')}, {counted(len(inputs.verdicts), 'verdict')} shown"
    print(f"written: {folder / 'index.html'} ({shown})", file=sys.stderr)
    return 0


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files by their names in the folder. Raises `UsageError` if that is not possible."""
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as error:
        where = error.filename or folder
        raise UsageError(f"the site cannot be written to '{where}': {error.strerror}") from error
