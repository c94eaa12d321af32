"""What people say of mutants that survived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from batchproof.records.mutants import MutantsRecord
from batchproof.validation.yaml_nodes import read_yaml

JUDGEMENTS = ("equivalent", "speed", "beyond", "hole")


@dataclass(frozen=True, slots=True)
class Judgement:
    """`equivalent`: no input shows it; `speed`: it changes speed or memory alone; `beyond`: no promise
    speaks of it; `hole`: the suite should have caught it."""

    judgement: str
    why: str


def judgements(folder: Path) -> dict[str, Judgement]:
    """Returns the judgements in `judged.yaml`, `name: [judgement, why]`, by the mutant's name; none if
    there is no file. Raises `CaseError` naming what is wrong in it.
    """
    path = folder / "judged.yaml"
    if not path.exists():
        return {}
    root = read_yaml(path, "the file", "judgements of mutants", if_empty="{}")
    found = {}
    for name, node in root.pairs("a mapping of names of mutants to [judgement, why]").items():
        match node.value():
            case [str(judgement), str(why)] if judgement in JUDGEMENTS:
                found[name] = Judgement(judgement, why)
            case value:
                raise node.place.error(
                    f"{name!r} has {value!r}, but must have [judgement, why] "
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
