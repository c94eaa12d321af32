"""What a collected test requires, and under which id."""

from __future__ import annotations

from itertools import chain
from typing import cast

import pytest

from batchproof.cases.schema import Case
from batchproof.places import SUITE
from batchproof.plugin.item_names import trial_of
from batchproof.requirements.sets import ANY_MODEL, Requirements


def is_conformance_test(item: pytest.Item) -> bool:
    """Returns whether the test asks for a `trial`."""
    return trial_of(item) is not None


def requirement_id(item: pytest.Item) -> str:
    """Returns the requirement id of a conformance test."""
    (each,) = requirements_of(item).ids
    return each


def requirements_of(item: pytest.Item) -> Requirements:
    """Returns what a conformance test requires: one id."""
    assert isinstance(item, pytest.Function), "conformance tests are functions"
    pair = "-".join(trial_of(item) or ()).encode("unicode_escape").decode("ascii")  # as pytest does
    function = item.nodeid.partition("[")[0].partition("::")[2]
    grade = item.get_closest_marker("grade")
    needed = [mark.args for kind in ("needs", "shows") for mark in item.iter_markers(kind)]
    return Requirements(
        test=f"{item.path.stem}::{function}",
        promise=next(item.iter_markers("promise")).kwargs["id"],
        grade=grade.args[0] if grade else "T",
        needs=tuple(sorted(set(chain.from_iterable(needed)))),
        models=(model_in_id(item),),
        parameters=(item.callspec.id.replace(pair, "", 1).removeprefix("-"),),
    )


def model_in_id(item: pytest.Item) -> str:
    """Returns the model of a conformance test; `any` if the first that is served is enough."""
    trial = trial_of(item)
    return ANY_MODEL if trial is None or item.get_closest_marker("first_served") else trial[1]


def is_required(item: pytest.Item) -> bool:
    """Returns whether the test is of the suite and asks something: a curated case may be about other
    models."""
    if not (is_conformance_test(item) and item.path.is_relative_to(SUITE)):
        return False
    case = cast(pytest.Function, item).callspec.params.get("case")
    return not (isinstance(case, Case) and case.models and model_in_id(item) not in case.models)
