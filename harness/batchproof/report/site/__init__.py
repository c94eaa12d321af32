"""`batchproof site DIR`: verdicts, benchmarks and grades as static pages, without JavaScript.

`inputs` reads the files. `history` sorts verdicts by engine and release. `matrix` makes the cells
engine x promise, `findings` what a verdict's page shows of each failure, `speed` the tables of figures
and grades. `pages` renders them. `folder` writes them, and deletes what an earlier site left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from batchproof.report.inputs import RESULTS
from batchproof.report.site.folder import write_site
from batchproof.report.site.inputs import KNOWN, read_all
from batchproof.report.site.pages import pages
from batchproof.report.words import many


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
    """Writes the pages. Raises `UsageError` for a file that is missing, damaged or too new, and for a
    folder that holds none.
    """
    found = read_all(arguments.paths, arguments.folder)
    files = pages(found)
    write_site(arguments.folder, files)
    counted = f"{many(len(files), 'file')}, {many(len(found.verdicts), 'verdict')} shown"
    print(f"written: {arguments.folder / 'index.html'} ({counted})", file=sys.stderr)
    return 0
