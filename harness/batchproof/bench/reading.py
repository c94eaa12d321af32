"""Reading a result file: whatever is wrong with it is said in a sentence that names the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from batchproof.errors import UsageError

FAMILY = "batchproof.benchmark"
VERSION = 1
SCHEMA = f"{FAMILY}/{VERSION}"

# What readers rely on: keys that must be there, and the kind of value. There may be more of them.
NUMBER = (int, float)
NUMBER_OR_NULL = (int, float, type(None))
OBJECT_OR_NULL = (dict, type(None))
CLOCK = frozenset({"process", "wall"})
VALID, INVALID, UNVERIFIED = "VALID", "INVALID", "UNVERIFIED"
VERDICT = frozenset({VALID, INVALID, UNVERIFIED})
SHAPE = {
    "schema": str,
    "header": {
        "made": {"machine": dict, "versions": dict},
        "device": {"type": str, "name": str},
        "clock": CLOCK,
    },
    "comparisons": [
        {
            "workload": {"name": str, "hash": str, "spec": dict, "totals": dict},
            "model": {"name": str, "dtype": str},
            "rows": [
                {
                    "engine": str,
                    "verdict": VERDICT,
                    "interface": str,
                    "rounds": [{"wall_s": NUMBER, "process_s": NUMBER}],
                    "metrics": OBJECT_OR_NULL,
                }
            ],
            "ratios": [
                {
                    "engine": str,
                    "over": str,
                    "clock": CLOCK,
                    "ratio": NUMBER,
                    "low": NUMBER_OR_NULL,
                    "high": NUMBER_OR_NULL,
                    "num_laps": int,
                }
            ],
        }
    ],
    "growth": [{"engine": str, "axis": str, "points": [{"x": NUMBER, "seconds": NUMBER}]}],
}
_KINDS: dict[type, Any] = {dict: dict, list: list, frozenset: str}
WORDS: dict[Any, str] = {dict: "an object", list: "a list", str: "a text", int: "a number"} | {
    NUMBER: "a number",
    NUMBER_OR_NULL: "a number or null",
    OBJECT_OR_NULL: "an object or null",
}


def load(path: Path | str) -> dict[str, Any]:
    """A result as it was written. Raises `UsageError` if it is not there, is none, or is damaged."""
    return checked(Path(path), parsed(Path(path)))


def checked(path: Path, result: Any) -> dict[str, Any]:
    """What `parsed` has read, if it is a result. Raises `UsageError` as `load` does."""
    if not isinstance(result, dict):
        raise UsageError(f"'{path}' is no result file: it holds {_kind(result)}, not an object")
    _check_schema(path, result.get("schema"))
    _check(path, "", result, SHAPE)
    return result


def is_complete(result: Mapping[str, Any]) -> bool:
    """Without a footer the run was stopped, and what it had is there."""
    return "footer" in result


def clock_of(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """`process` or `wall`: what the ratios of this comparison are made of. Where it does not say: a
    workload with arrivals is on the wall clock in a file whose other comparisons are on process time,
    even where too few of its rows are VALID for a ratio."""
    if "clock" in comparison:
        return str(comparison["clock"])
    clocks = {each["clock"] for each in comparison["ratios"]}
    if len(clocks) == 1:
        return str(clocks.pop())
    has_arrivals = comparison["workload"]["spec"].get("arrival_rate") is not None
    return "wall" if has_arrivals else str(result["header"]["clock"])


def parsed(path: Path) -> Any:
    """Of any JSON file of results. Raises `UsageError`."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory, but must be a result file")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError as error:
        raise UsageError(f"there is no result file '{path}'") from error
    except OSError as error:
        raise UsageError(f"result file '{path}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise UsageError(f"'{path}' is no result file: it is not JSON ({error})") from error


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _check_schema(path: Path, schema: Any) -> None:
    family, _, version = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if family == FAMILY and version.isascii() and version.isdigit() and int(version) > VERSION:
        raise UsageError(
            f"'{path}' has schema {schema!r}, but this version of Batchproof reads up to {SCHEMA!r}"
        )
    if schema != SCHEMA:
        raise UsageError(f"'{path}' is no benchmark result: its schema is {schema!r}, not {SCHEMA!r}")


def _check(path: Path, place: str, value: Any, shape: Any) -> None:
    """`place`: where in the file, as one would index it."""
    damaged = f"result file '{path}' is damaged:"
    kind = _KINDS.get(type(shape), shape)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{damaged} {place} is {_kind(value)}, not {WORDS[kind]}")
    if isinstance(shape, frozenset) and value not in shape:
        raise UsageError(f"{damaged} {place} is {value!r}, not one of {', '.join(sorted(shape))}")
    if isinstance(shape, list):
        for index, each in enumerate(value):
            _check(path, f"{place}[{index}]", each, shape[0])
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            if key not in value:
                raise UsageError(f"{damaged} {place or 'it'} has no {key!r}")
            _check(path, f"{place}.{key}".lstrip("."), value[key], inner)


def _kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return WORDS.get(type(value), "a number")
