"""Rules for single values. Each function returns the value, or raises `InvalidValueError`."""

import difflib
from collections.abc import Collection, Iterable
from typing import TypeVar

from batchproof.errors import UsageError

Number = TypeVar("Number", int, float)


class InvalidValueError(UsageError):
    """A value breaks a rule. A caller that knows the flag or the line of `name` can report that instead
    of the name, with the same `complaint`."""

    def __init__(self, name: str, complaint: str) -> None:
        """`complaint` continues the name: "is 0, but must be at least 1"."""
        super().__init__(f"{name} {complaint}")
        self.name = name
        self.complaint = complaint


def require(is_valid: bool, name: str, value: object, rule: str) -> None:
    """Raises `InvalidValueError` unless `is_valid`; `rule` continues "but must be"."""
    if not is_valid:
        raise InvalidValueError(name, f"is {value}, but must be {rule}")


def at_least(name: str, value: Number, least: Number) -> Number:
    require(value >= least, name, value, f"at least {least}")
    return value


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    known = list(choices)
    if value not in known:
        raise InvalidValueError(name, f"{value!r} is unknown; choose one of {', '.join(known)}")
    return value


def near(name: str, choices: Collection[str], lister: str = "") -> str:
    """Returns the end of a complaint about an unknown name: the choices closest to it, or else all of
    them, or what lists them."""
    found = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    meant = f"do you mean {' or '.join(found)}?" if found else ""
    if lister:
        return f"{meant} {lister} lists all {len(choices)}".strip()
    return meant or f"choose {', '.join(choices)}"
