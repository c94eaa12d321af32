"""`batchproof site DIR`: verdicts, benchmarks and grades as static pages, without JavaScript.

`inputs` reads the files. `history` sorts verdicts by engine and release. `findings`, `benchmarks` and
`grades` make the values that the pages show, each a pure function of records. `pages` renders them.
`folder` writes them, and deletes what an earlier site left.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.texts import counted
from batchproof.site.folder import write_site
from batchproof.site.inputs import KNOWN, RESULTS, read_inputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where the pages go")
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[RESULTS],
        metavar="FILE|FOLDER",
        help=f"{KNOWN}; of a folder, all in it and below (default: {RESULTS}/)",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="instead of a site, write a benchmark file as tables in Markdown and its ratios as SVG, "
        "beside FILE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the pages. Raises `UsageError` for a file that is missing, damaged or too new, and for a
    folder that holds none.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("the charts are drawn with matplotlib, so install it: pip install matplotlib")
    if (arguments.folder is None) == (arguments.markdown is None):
        raise UsageError("name the folder DIR of the site, or a benchmark file with --markdown")
    if arguments.markdown is not None:
        module = importlib.import_module("batchproof.site.benchmarks")  # imports matplotlib
        for path in module.write_markdown(arguments.markdown):
            print(f"written: {path}", file=sys.stderr)
        return 0
    inputs = read_inputs(arguments.paths, arguments.folder)
    files = importlib.import_module("batchproof.site.pages").pages(inputs)  # imports matplotlib
    write_site(arguments.folder, files)
    shown = f"{counted(len(files), 'file')}, {counted(len(inputs.verdicts), 'verdict')} shown"
    print(f"written: {arguments.folder / 'index.html'} ({shown})", file=sys.stderr)
    return 0
