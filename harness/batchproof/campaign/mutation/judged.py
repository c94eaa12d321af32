"""What people say of mutants that survived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from batchproof.errors import UsageError
from batchproof.records.mutants import MutantsRecord

JUDGEMENTS = ("equivalent", "speed", "beyond", "hole")


@dataclass(frozen=True, slots=True)
class Judgement:
    """`equivalent`: no input shows it; `speed`: it changes speed or memory alone; `beyond`: no promise
    speaks of it; `hole`: the suite should have caught it."""

    judgement: str
    why: str


def judgements(folder: Path) -> dict[str, Judgement]:
    """Returns the judgements in `judged.yaml`, `name: [judgement, why]`, by the mutant's name; none if
    there is no file. Raises `UsageError` naming what is wrong in it.
    """
    path = folder / "judged.yaml"
    if not path.exists():
        return {}
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"'{path}' must map names of mutants to [judgement, why]")
    found = {}
    for name, value in document.items():
        match value:
            case [str(judgement), str(why)] if judgement in JUDGEMENTS:
                found[str(name)] = Judgement(judgement, why)
            case _:
                raise UsageError(
                    f"'{path}': {name!r} has {value!r}, but must have [judgement, why] "
                    f"with one of {', '.join(JUDGEMENTS)}"
                )
    return found


def open_survivors(runs: Iterable[MutantsRecord], judged: Mapping[str, Judgement]) -> Iterator[str]:
    """Yields a line for each survivor that is a hole or not judged, each mutant that waits, and each
    judgement of a mutant that does not survive."""
    outcomes = {row.name: row.outcome for each in runs for row in each.mutants}
    for name, outcome in outcomes.items():
        judgement = judged[name].judgement if name in judged else "not judged"
        if outcome == "survived" and judgement in ("hole", "not judged"):
            yield f"survived, {judgement}: {name}"
        if outcome == "waiting":
            yield f"not tried to the end: {name}"
    for name in judged:
        if outcomes.get(name) not in ("survived", "waiting"):
            yield f"judged, but {outcomes.get(name, 'in no run')}: {name}"
