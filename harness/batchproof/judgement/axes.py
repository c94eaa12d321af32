"""The axes of a matrix, and which of their combinations are judged.

An axis has named values. A value sets options of the engine, and options of the suite, whose names
begin with `--`: `q8_0 = {kv_cache = "q8_0", "--kv-cache-dtype" = "int8"}`. The first value of each axis
is the base. A value may name the counters that prove it: `on = {restored = "true", met = "states
restored from disk"}`, or a list of them. Of each something must have happened in every cell with it. It
may also name the values of other axes that it needs: `2 = {tp = "2", beside = {pp = "1"}}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covertable import make

from batchproof.errors import UsageError
from batchproof.records.matrix import Settings
from batchproof.records.texts import slug
from batchproof.validation.values import near

SUITE_OPTION = "--"
MODEL = "--model"
ANY = "*"  # in the place of the model


@dataclass(frozen=True)
class Value:
    options: Mapping[str, str]  # that it sets
    met: tuple[str, ...] = ()  # the counters that prove it
    beside: Mapping[str, str] = field(default_factory=dict)  # other axes, and the value they have then


Axes = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True)
class Cell:
    """A configuration: the engine's text, and options of the suite. Its page is in `folder`, below that
    of the matrix."""

    settings: Settings
    folder: str
    engine: str
    options: tuple[str, ...]
    proofs: Mapping[str, tuple[str, ...]]  # axis -> counters

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


def declared_axes(declared: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Axes:
    """Returns the axes that an engine declares."""
    return {
        name: {value: _value(given) for value, given in values.items()}
        for name, values in declared.items()
    }


def _value(given: Mapping[str, Any]) -> Value:
    options = dict(given)
    met, beside = options.pop("met", ()), options.pop("beside", {})
    return Value(options, (met,) if isinstance(met, str) else tuple(met), beside)


def with_needed(value: Value, axes: Axes) -> Value:
    """Returns a value that also sets what it needs of these other axes."""
    needed = [value]
    for each in needed:  # it grows
        others = (axes.get(name, {}).get(wanted) for name, wanted in each.beside.items())
        needed += [other for other in others if other is not None and other not in needed]
    options = {name: each for of in reversed(needed) for name, each in of.options.items()}
    beside = {name: wanted for of in reversed(needed) for name, wanted in of.beside.items()}
    return Value(options, value.met, beside)


def axes_of(declared: Axes, asked: Sequence[str], engine: str) -> Axes:
    """Returns the axes that are asked for as `NAME=VALUE,VALUE`, or as `NAME`, which is one of those
    that the engine declares; all of these if none is asked for. Raises `UsageError`."""
    given: dict[str, Mapping[str, Value]] = {}
    for text in asked:
        name, values = _asked(text, declared, engine)
        if name in given:
            raise UsageError(f"--axis {name!r} is given twice")
        given[name] = values
    axes = given or declared
    if not axes:
        raise UsageError(f"{engine!r} declares no axes: give some, as in --axis NAME=VALUE,VALUE")
    if MODEL not in axes and (models := _models_needed(axes, declared)):
        axes = {**axes, MODEL: models}  # a requirement of a model is asked of other values on it alone
    rest = {name: values for name, values in declared.items() if name not in axes}
    return {
        name: {value: with_needed(each, rest) for value, each in values.items()}
        for name, values in axes.items()
    }


def _models_needed(axes: Axes, declared: Axes) -> Mapping[str, Value]:
    """Returns the models that values need, behind the first one that the engine declares."""
    known = declared.get(MODEL, {})
    every = [with_needed(each, declared).beside for values in axes.values() for each in values.values()]
    needed = {each[MODEL] for each in every if MODEL in each}
    return {name: known[name] for name in known if needed and name in {*needed, next(iter(known))}}


def _asked(text: str, known: Axes, engine: str) -> tuple[str, Mapping[str, Value]]:
    name, has_values, listed = text.rpartition("=")
    if not has_values:
        if text not in known:
            rule = f" ({near(text, known)})" if known else ""
            raise UsageError(
                f"--axis {text!r} has no values, and {engine!r} declares no axis of that name{rule}: "
                "give it as NAME=VALUE,VALUE"
            )
        return text, known[text]
    values = listed.split(",")
    if not name.strip("="):
        raise UsageError(f"--axis {text!r} must begin with a name, as in NAME=VALUE,VALUE")
    if len({*filter(None, values)}) < max(2, len(values)):
        raise UsageError(f"--axis {text!r} must have two or more different values, as NAME=VALUE,VALUE")
    declared = known.get(name, {})
    is_declared = set(values) <= set(declared)
    return name, {each: declared[each] if is_declared else Value({name: each}) for each in values}


def base_of(axes: Axes) -> Settings:
    return {name: next(iter(values)) for name, values in axes.items()}


def chosen(axes: Axes) -> list[Settings]:
    """Returns the settings to judge: in them each value meets each of every other axis beside which it
    may stand, as the scenes of one workload do. The base is the first. Raises `UsageError` for a value
    that may stand beside none."""
    allowed = [
        {"operator": "or", "conditions": [_is(name, "ne", value), _is(other, "eq", wanted)]}
        for name, values in axes.items()
        for value, each in values.items()
        for other, wanted in each.beside.items()
        if other in axes
    ]
    named = {name: [*values] for name, values in axes.items()}
    strength = min(2, len(axes))
    rows = make(named, strength=strength, presets=[base_of(axes)], constraints=allowed)
    for name in axes:
        if lost := [value for value in axes[name] if value not in {row[name] for row in rows}]:
            needed = words_of(axes[name][lost[0]].beside)
            why = f"it needs {needed}" if needed else "they exclude it"
            raise UsageError(f"--axis {name!r}: {lost[0]} may stand beside no other value: {why}")
    return [{name: row[name] for name in axes} for row in rows]


def _is(name: str, operator: str, value: str) -> dict[str, str]:
    return {"operator": operator, "left": name, "value": value}


def cell_of(engine: str, axes: Axes, settings: Settings) -> Cell:
    """Returns the configuration of an engine with these settings."""
    values = {axis: axes[axis][value] for axis, value in settings.items()}
    given = {name: each for value in values.values() for name, each in value.options.items()}
    proofs = {axis: value.met for axis, value in values.items()}
    options = [f"{name}={value}" for name, value in given.items() if name.startswith(SUITE_OPTION)]
    own = [f"{name}={value}" for name, value in given.items() if not name.startswith(SUITE_OPTION)]
    mark = "" if not own else "&" if "?" in engine else "?"
    text = f"{engine}{mark}{'&'.join(own)}"
    other = unlike(settings, base_of(axes))
    folder = slug(" ".join(f"{name} {value}" for name, value in other.items()) or "base")
    return Cell(settings, folder, text, tuple(options), proofs)


def unlike(settings: Settings, base: Settings) -> Settings:
    """Returns the settings that are not those of the base."""
    return {name: value for name, value in settings.items() if value != base[name]}


def words_of(settings: Settings, between: str = " and ") -> str:
    """Returns settings as a reader reads them: `dtype=bfloat16 and compiled=true`."""
    each = (f"{name.removeprefix(SUITE_OPTION)}={value}" for name, value in settings.items())
    return between.join(each)
