"""Requirement sets: dated lists of what the suite requires of an engine.

A set is the file `NAME.json` in this folder. Once its digest stands in `RELEASED`, it never changes:
what is added to the suite later is in the next set. A *requirement id*, `module::function[model-...]`,
is the id of a test without the engine; the model is `any` where the first that an engine serves
decides. Ids are public: a test of a released set is never renamed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.decode import encode
from batchproof.records.file_kinds import FileKind
from batchproof.records.verdict import Grade, SetStamp

FOLDER = Path(__file__).parent
RELEASED: dict[str, str] = {
    "2026.12": "05c54cbd6c6856f77be44ce6e353fba6baaa65f2595591b1b867b6d8344b15fb"
}
ANY_MODEL = "any"
CURRENT = "current"  # no set: what the suite holds now


@dataclass(frozen=True)
class Requirements:
    """What one test function requires: an id for each pair of a model and parameters."""

    test: str  # module::function
    promise: str
    grade: Grade
    needs: tuple[str, ...]  # capabilities, without which nothing is required
    models: tuple[str, ...]
    parameters: tuple[str, ...]  # as in the ids; an empty one: none

    @property
    def ids(self) -> tuple[str, ...]:
        """Returns the requirement ids."""
        pairs = ((model, each) for model in self.models for each in self.parameters)
        return tuple(f"{self.test}[{'-'.join(filter(None, pair))}]" for pair in pairs)


@dataclass(frozen=True)
class RequirementSet:
    """A set. `date` is that of its release."""

    name: str
    date: str
    requirements: tuple[Requirements, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Requirements]:
        """Returns each requirement id with what it is an id of."""
        return {each_id: each for each in self.requirements for each_id in each.ids}

    @cached_property
    def digest(self) -> str:
        """Returns the SHA-256 of the set as canonical JSON: sorted keys, no blanks."""
        text = json.dumps(encode(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def stamp(self) -> SetStamp:
        """Returns what a verdict states of the set."""
        return SetStamp(self.name, self.date, self.digest)


SET = FileKind("requirement set", "batchproof.requirements", 1, RequirementSet)


def names() -> list[str]:
    """Returns the names of all sets, the oldest first."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> RequirementSet:
    """Returns the set. Raises `UsageError` if there is none of that name, or if it was changed after
    its release."""
    if name not in names():
        raise UsageError(
            f"there is no requirement set {name!r}; choose {' or '.join([*names(), CURRENT])}"
        )
    found = SET.read(FOLDER / f"{name}.json")
    released = RELEASED.get(name)
    if released is not None and found.digest != released:
        raise UsageError(
            f"requirement set {name} was changed after its release: its digest is {found.digest[:12]}, "
            f"not {released[:12]}"
        )
    return found


def set_of(name: str, date: str, requirements: Iterable[Requirements]) -> RequirementSet:
    """Returns a set of requirements with an id each, those that differ in nothing else as one."""
    by_model: dict[Requirements, list[str]] = {}
    for each in requirements:
        by_model.setdefault(replace(each, models=()), []).extend(each.models)
    by_parameter: dict[Requirements, list[str]] = {}
    for each, models in by_model.items():
        key = replace(each, models=tuple(models), parameters=())
        by_parameter.setdefault(key, []).extend(each.parameters)
    merged = [replace(each, parameters=tuple(found)) for each, found in by_parameter.items()]
    found = RequirementSet(name, date, tuple(merged))
    assert len(found.by_id) == sum(len(each.ids) for each in merged), "two tests have one id"
    return found


def freeze(requirements: RequirementSet) -> Path:
    """Writes the file of a set, a line for each test function, and returns its path. Raises
    `UsageError` for a set that is released."""
    if requirements.name in RELEASED:
        raise UsageError(
            f"requirement set {requirements.name} is released and never changes; if it is not out yet, "
            f"take it out of RELEASED in {FOLDER / 'sets.py'} first"
        )
    path = FOLDER / f"{requirements.name}.json"
    SET.write(requirements, path)
    return path
