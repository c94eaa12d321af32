"""`batchproof report`: result files as one page that needs neither network nor JavaScript."""

from __future__ import annotations

import argparse
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.report.inputs import KNOWN, RESULTS, Kind, sources

DEFAULT_OUTPUT = RESULTS / "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help=f"result files: {KNOWN} (default: those in {RESULTS}/*.json)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        metavar="FILE",
        help="the page to write (default: %(default)s)",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="write throughput, ratios, slots and growth as stand-alone SVG files to DIR as well",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="instead of the page, write one benchmark file as tables in Markdown, with its pictures "
        "beside them as SVG",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the page. Raises `UsageError` for a file that is missing, damaged or of another schema."""
    if find_spec("matplotlib") is None:
        raise UsageError("the report draws with matplotlib, so install it: pip install matplotlib")
    if arguments.markdown is not None:
        return _write_markdown(arguments)
    for option, folder in (("--output", arguments.output.parent), ("--pictures", arguments.pictures)):
        if folder is not None and not folder.is_dir():
            raise UsageError(f"there is no folder {str(folder)!r} to write to; {option} names another")
    read = sources(arguments.files)
    page = importlib.import_module("batchproof.report.page")  # imports matplotlib
    _write(arguments.output, page.rendered(page.page(read)))
    if arguments.pictures is not None:
        pictures = importlib.import_module("batchproof.report.pictures").pictures(read)
        for name, picture in pictures.items():
            _write(arguments.pictures / f"{name}.svg", picture)
        if not pictures:
            print("no picture to write: none of the files is a benchmark result", file=sys.stderr)
    return 0


def _write_markdown(arguments: argparse.Namespace) -> int:
    target: Path = arguments.markdown
    read = sources(arguments.files)
    if len(read) != 1 or read[0].kind is not Kind.BENCHMARK:
        raise UsageError(f"--markdown {str(target)!r} is made of one benchmark file: name it")
    if target.suffix != ".md" or not target.parent.is_dir():
        raise UsageError(f"--markdown {str(target)!r} must name a .md file in a folder that exists")
    module = importlib.import_module("batchproof.report.markdown_page")  # imports matplotlib
    page, pictures = module.markdown_page(read[0], target.stem)
    for name, picture in pictures.items():
        _write(target.with_name(name), picture)
    _write(target, page)
    return 0


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    print(f"written: {path} ({len(content.encode()) / 1e6:.2f} MB)", file=sys.stderr)
