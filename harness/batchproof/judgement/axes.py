"""The axes of a matrix, and which of their combinations are judged.

An axis has named values. A value sets options of the engine, and options of the suite, whose names
begin with `--`: `q8_0 = {kv_cache = "q8_0", "--kv-cache-dtype" = "int8"}`. The first value of each axis
is the base. A value may name the counters that prove it: `on = {restored = "true", met = "states
restored from disk"}`, or a list of them. Of each something must have happened in every cell with it. It
may also name the values of other axes that it needs: `2 = {tp = "2", beside = {pp = "1"}}`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from covertable import make

from batchproof.errors import UsageError
from batchproof.records.matrix import Settings
from batchproof.records.texts import slug
from batchproof.validation.values import near

SUITE_OPTION = "--"
MODEL = "--model"
ANY = "*"  # in the place of the model
MET = "met"  # in the place of an option: the counters that prove the value
BESIDE = "beside"  # in the place of an option: other axes, and the value that they have beside it
Value = Mapping[str, str | Sequence[str] | Mapping[str, str]]  # options that it sets, `MET`, `BESIDE`
Axes = Mapping[str, Mapping[str, Value]]  # axis -> value -> its options


@dataclass(frozen=True)
class Cell:
    """A configuration: the engine's text, and options of the suite."""

    settings: Settings
    engine: str
    options: tuple[str, ...]
    proofs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # axis -> counters

    def unmet(self, counters: Mapping[str, int]) -> str:
        """Returns which axis was not met in a run that counted this, or an empty text."""
        for axis, names in self.proofs.items():
            for name in (each for each in names if not counters.get(each)):
                others = ", ".join(counters) or "nothing"
                why = f"0 {name}" if name in counters else f"nobody counts {name!r}, but {others}"
                return f"{words_of({axis: self.settings[axis]})} was not met: {why}"
        return ""

    @property
    def model(self) -> str | None:
        """Returns the model, if that is an axis."""
        given = [each.removeprefix(f"{MODEL}=") for each in self.options if each.startswith(MODEL)]
        return given[0] if given else None

    def without_model(self, requirement: str) -> str:
        """Returns the name of a requirement with which it is compared to that on another model."""
        start = f"[{self.model}"
        before, found, after = requirement.partition(start)
        return f"{before}[{ANY}{after}" if found and after[:1] in "]-" else requirement

    def on_model(self, requirement: str) -> str:
        return requirement.replace(f"[{ANY}", f"[{self.model}", 1) if self.model else requirement


def axes_of(declared: Axes, asked: Sequence[str], engine: str) -> Axes:
    """Returns the axes that are asked for as `NAME=VALUE,VALUE`, or as `NAME`, which is one of those
    that the engine declares; all of these if none is asked for. Raises `UsageError`."""
    names = [_name(text) for text in asked]
    if twice := [each for each in dict.fromkeys(names) if names.count(each) > 1]:
        raise UsageError(f"--axis {twice[0]!r} is given twice")
    given = {name: _asked(text, declared, engine) for name, text in zip(names, asked, strict=True)}
    axes = given or declared
    if not axes:
        raise UsageError(f"{engine!r} declares no axes: give some, as in --axis NAME=VALUE,VALUE")
    for name, value, other, wanted in _pairs(axes):
        if wanted not in axes.get(other, [wanted]):
            known = ", ".join(axes[other])
            raise UsageError(
                f"--axis {name!r}: {value} needs {other}={wanted}, but --axis {other!r} has {known}"
            )
    return {
        name: {value: _whole(options, axes, declared) for value, options in values.items()}
        for name, values in axes.items()
    }


def _whole(options: Value, axes: Axes, declared: Axes) -> Value:
    """Returns the options of a value, and those of what it needs of axes that are not asked for."""
    needed = {other: wanted for other, wanted in beside_of(options).items() if other not in axes}
    others = (declared[other][wanted].items() for other, wanted in needed.items())
    return {name: each for of in (*others, options.items()) for name, each in of}


def beside_of(options: Value) -> Mapping[str, str]:
    """Returns the values of other axes that a value needs."""
    beside = options.get(BESIDE, {})
    assert isinstance(beside, Mapping), "a table"
    return beside


def _pairs(axes: Axes) -> Iterator[tuple[str, str, str, str]]:
    """Yields an axis and a value of it, then another axis and the value that it has beside that."""
    for name, values in axes.items():
        for value, options in values.items():
            yield from ((name, value, *pair) for pair in beside_of(options).items())


def _name(text: str) -> str:
    return text if "=" not in text else text.rpartition("=")[0]


def _asked(text: str, known: Axes, engine: str) -> Mapping[str, Value]:
    name = _name(text)
    if "=" not in text:
        if name not in known:
            rule = f" ({near(name, known)})" if known else ""
            raise UsageError(
                f"--axis {text!r} has no values, and {engine!r} declares no axis of that name{rule}: "
                "give it as NAME=VALUE,VALUE"
            )
        return known[name]
    values = text.rpartition("=")[2].split(",")
    if not name.strip("=") or len({*filter(None, values)}) < max(2, len(values)):
        raise UsageError(f"--axis {text!r} must have two or more different values, as NAME=VALUE,VALUE")
    declared = known.get(name, {})
    if set(values) <= set(declared):
        return {each: declared[each] for each in values}
    return {each: {name: each} for each in values}


def base_of(axes: Axes) -> Settings:
    return {name: next(iter(values)) for name, values in axes.items()}


def chosen(axes: Axes) -> list[Settings]:
    """Returns the settings to judge: in them each value meets each of every other axis beside which it
    may stand, as the scenes of one workload do. The base is the first."""
    allowed = [
        {"operator": "or", "conditions": [_is(name, "ne", value), _is(other, "eq", wanted)]}
        for name, value, other, wanted in _pairs(axes)
        if other in axes
    ]
    named = {name: [*values] for name, values in axes.items()}
    strength = min(2, len(axes))
    rows = make(named, strength=strength, presets=[base_of(axes)], constraints=allowed)
    return [{name: row[name] for name in axes} for row in rows]


def _is(name: str, operator: str, value: str) -> dict[str, str]:
    return {"operator": operator, "left": name, "value": value}


def cell_of(engine: str, axes: Axes, settings: Settings) -> Cell:
    """Returns the configuration of an engine with these settings."""
    given: dict[str, object] = {}
    proofs: dict[str, tuple[str, ...]] = {}
    for axis, value in settings.items():
        given |= {name: each for name, each in axes[axis][value].items() if name not in (MET, BESIDE)}
        if proof := proof_of(axes[axis][value]):
            proofs[axis] = proof
    options = [f"{name}={value}" for name, value in given.items() if name.startswith(SUITE_OPTION)]
    own = [f"{name}={value}" for name, value in given.items() if not name.startswith(SUITE_OPTION)]
    joined = "&".join(own)
    mark = "" if not own else "&" if "?" in engine else "?"
    return Cell(settings, f"{engine}{mark}{joined}", tuple(options), proofs)


def proof_of(value: Value) -> tuple[str, ...]:
    """Returns the counters that prove a value of an axis."""
    named = value.get(MET, ())
    return (named,) if isinstance(named, str) else tuple(named)


def folder_name(settings: Settings, base: Settings) -> str:
    """Returns a folder's name: what differs from the base."""
    other = unlike(settings, base)
    return slug(" ".join(f"{name} {value}" for name, value in other.items())) if other else "base"


def unlike(settings: Settings, base: Settings) -> Settings:
    """Returns the settings that are not those of the base."""
    return {name: value for name, value in settings.items() if value != base[name]}


def words_of(settings: Settings, between: str = " and ") -> str:
    """Returns settings as a reader reads them: `dtype=bfloat16 and compiled=true`."""
    each = (f"{name.removeprefix(SUITE_OPTION)}={value}" for name, value in settings.items())
    return between.join(each)
