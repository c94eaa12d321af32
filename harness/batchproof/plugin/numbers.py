"""Options that take a number: text that is none ends in one sentence, not in a page of usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

Number = TypeVar("Number", int, float)


def seconds(option: str) -> Callable[[str], float]:
    """Returns what reads the option's value, for `type=` of `addoption`. That raises
    `pytest.UsageError`.
    """
    return _reader(option, float, "a number of seconds")


def whole(option: str) -> Callable[[str], int]:
    """Returns the same for a whole number."""
    return _reader(option, int, "a whole number")


def _reader(option: str, kind: Callable[[str], Number], rule: str) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        try:
            return kind(text)
        except ValueError:
            raise pytest.UsageError(f"{option} is {text!r}, but must be {rule}") from None

    return read
