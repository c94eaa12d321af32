"""The grades of invariance, which docs/invariance.md defines, and which comparison gives which grade.

A comparison serves one request, the *kept* one, in two settings that differ along one axis: the base
and the changed one. Its prompt, cap and config fields that the axis is not about are the same in
both. Its answer is its tokens and, if the engine returns them, the float32 logits they were chosen
from. Where tokens differ, logits are compared up to the first different token, inclusive: behind it
the histories differ. E is that of the calibration, or if that is too small, that of this very input.

The grade of an axis is the weakest grade of its comparisons.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile
from math import isfinite
from typing import Self

import torch
from torch import Tensor

from batchproof.oracle.oracle import Oracle, centred
from batchproof.records.invariance import GradeLetter


class Grade(IntEnum):
    """A greater grade is stronger and implies all weaker ones."""

    NONE = 0
    TOKENS = 1
    WITHIN_E = 2
    SAME_SHAPES = 3
    BITWISE = 4

    @property
    def letter(self) -> GradeLetter:
        return LETTERS[self]

    @classmethod
    def of(cls, letter: str) -> Self:
        """Returns the grade of a letter. Raises `ValueError` for any other."""
        return cls(list[str](LETTERS).index(letter))


LETTERS: tuple[GradeLetter, ...] = ("-", "T", "E", "S", "B")  # by grade


@dataclass(frozen=True)
class Answer:
    """What an engine answered to the kept request. `logits` is float32 `(len(token_ids), vocab)`."""

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: Tensor | None

    def is_same(self, other: Self) -> bool:
        if self.logits is None or other.logits is None:
            return False
        return self.token_ids == other.token_ids and torch.equal(self.logits, other.logits)


def difference(oracle: Oracle, base: Answer, changed: Answer) -> float | None:
    """Returns the largest difference of a logit, centred, in units of E; None without logits. Raises
    `OracleError` if E cannot be measured."""
    if base.logits is None or changed.logits is None:
        return None
    pairs = zip(base.token_ids, changed.token_ids, strict=False)
    num_equal = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    num_rows = min(num_equal + 1, len(base.token_ids), len(changed.token_ids))
    moved = centred(base.logits[:num_rows]) - centred(changed.logits[:num_rows])
    worst = moved.abs().max().item()
    if worst == 0.0 or not isfinite(worst) or worst <= oracle.logit_bound:
        return worst / (oracle.error.max_abs or 1.0)
    *_, unit = oracle.errors(base.prompt, base.token_ids)  # this input may amplify rounding
    return worst / unit.max_abs if unit.max_abs else float("inf")


@dataclass(frozen=True)
class Graded:
    """The grade of one comparison. `worst` is the largest difference of a logit in units of E; None
    without logits, and where it is not finite."""

    grade: Grade
    worst: float | None
    has_moved: bool  # a logit, or without logits a token


def graded(
    oracle: Oracle,
    base: Answer,
    changed: Answer,
    control: Callable[[], Answer],
    keeps_shapes: bool = False,
) -> Graded:
    """Grades the answers of two settings. `control` serves the changed setting once more, with other
    contents of all neighbours; it is called only where S depends on it. Raises `OracleError`, and what
    `control` raises."""
    worst, has_same_tokens = difference(oracle, base, changed), base.token_ids == changed.token_ids
    is_constructed, is_same = oracle.subject.oracle is not None, base.is_same(changed)
    is_rounding = worst is not None and worst <= oracle.kappa
    if is_same:
        grade = Grade.SAME_SHAPES if keeps_shapes else Grade.BITWISE
    elif is_rounding and (has_same_tokens or not is_constructed):
        is_of_shapes = not keeps_shapes and changed.is_same(control())
        grade = Grade.SAME_SHAPES if is_of_shapes else Grade.WITHIN_E
    else:
        grade = Grade.TOKENS if has_same_tokens and is_constructed else Grade.NONE
    has_moved = not has_same_tokens if worst is None else not is_same
    return Graded(grade, worst if worst is not None and isfinite(worst) else None, has_moved)
