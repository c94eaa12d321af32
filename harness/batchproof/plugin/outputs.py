"""The files that a run writes: `--table`, `--verdict`, `--journal`, `--artifacts` and `--repro`."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from batchproof.errors import UsageError

TABLE, VERDICT, JOURNAL = "--table", "--verdict", "--journal"
ARTIFACTS, REPRO = "--artifacts", "--repro"
HELP = {
    REPRO: "for each failure write a file for `python -m batchproof replay` and a YAML case to DIR",
    TABLE: "write the table engine x promise to FILE as JSON when the session ends",
    ARTIFACTS: "write all that CI keeps or shows of the run to DIR: summary.md, junit.xml, table.json, "
    "failures/ and, with one engine, verdict.json",
    VERDICT: "write the verdict on the engine to FILE as JSON when the session ends",
    JOURNAL: "write each finished test to FILE, and leave out those that it holds already",
}


@dataclass(frozen=True)
class Outputs:
    """Absolute paths of the files and folders that were asked for."""

    table: Path | None
    verdict: Path | None
    journal: Path | None
    artifacts: Path | None


def add_options(group: pytest.OptionGroup) -> None:
    for option, text in HELP.items():
        group.addoption(option, metavar="DIR" if option in (ARTIFACTS, REPRO) else "FILE", help=text)


def resolve_outputs(config: pytest.Config) -> Outputs:
    """Returns the paths, and makes the folder of artifacts, which is given the other files unless their
    options name others. Raises `UsageError` for a path that cannot be written."""
    option, get = config.option, config.getoption
    for name in (TABLE, VERDICT, ARTIFACTS):
        if get(name) is not None and get("--benchmark-only", default=False):
            raise UsageError(f"{name} {get(name)!r} has nothing to write with --benchmark-only")
    folder = None if get(ARTIFACTS) is None else _artifacts(get(ARTIFACTS))
    num_engines = len(get("--engine") or ())
    if folder is not None:
        option.table = option.table or str(folder / "table.json")
        option.repro = option.repro or str(folder / "failures")
        if num_engines == 1:
            option.verdict = option.verdict or str(folder / "verdict.json")
        option.xmlpath = getattr(option, "xmlpath", None) or str(folder / "junit.xml")
    if option.repro:
        _require_room(REPRO, option.repro, Path(option.repro))
    journal = _file(JOURNAL, option.journal) if option.journal else None
    table, verdict = (_json(name, get(name)) for name in (TABLE, VERDICT))
    if verdict is not None and num_engines != 1:
        raise UsageError(
            f"{VERDICT} holds the verdict on one engine, but {num_engines or 'none'} are named"
        )
    return Outputs(table, verdict, journal, folder)


def _artifacts(asked: str) -> Path:
    if not asked:
        raise UsageError(f"{ARTIFACTS} '' must name a folder")
    folder = Path(asked).resolve()
    _require_room(ARTIFACTS, asked, folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _json(option: str, asked: str | None) -> Path | None:
    """Returns the path of a JSON file to write. Raises `UsageError`."""
    if asked is None:
        return None
    if Path(asked).suffix != ".json":
        raise UsageError(f"{option} {asked!r} must name a file that ends in .json")
    return _file(option, asked)


def _file(option: str, asked: str) -> Path:
    """Returns the absolute path of a file to write. Raises `UsageError`."""
    path = Path(asked)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{option} {asked!r} must name a file in a folder that is there")
    _require_room(option, asked, path.parent)
    return path.resolve()


def _require_room(option: str, asked: str, folder: Path) -> None:
    """Raises `UsageError` unless a file can be written in the folder or, if that is missing, in the
    first one above that is there."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        TemporaryFile(dir=there).close()
    except OSError as error:
        raise UsageError(f"{option} {asked!r} cannot be written: {error.strerror}") from None
