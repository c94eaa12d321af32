"""Every rule rendered from its declaration alone, and the facts that it refuses."""

import ast
import json
import math
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest

from batchproof.checks.broken import BrokenPromise, require
from batchproof.findings.finding import Finding, found, thawed
from batchproof.findings.finding_text import finding_text
from batchproof.findings.rules import CAUSE_OF_PROMISE, Replay, Rule
from batchproof.places import PACKAGE, SUITE
from batchproof.requirements.promises import Promise

SAMPLES = {int: 3, str: "some", bool: True, NoneType: None}


def sample(kind: Any, number: float) -> Any:
    """Returns a value of the type; `number` stands for a float."""
    if isinstance(kind, UnionType):
        return sample(get_args(kind)[0], number)
    if get_origin(kind) is tuple:
        return [sample(get_args(kind)[0], number)] * 2
    return number if kind is float else SAMPLES[kind]


@pytest.mark.parametrize("number", [0.25, math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("rule", Rule, ids=str)
def test_each_rule_is_rendered_and_stored(rule: Rule, number: float) -> None:
    """NaN and infinity once ended a run with a journal in an internal error: JSON has neither."""
    facts = {name: sample(kind, number) for name, kind in rule.facts.items()}
    finding = found(rule, "r", 5, **facts)
    stored = json.dumps({name: thawed(each) for name, each in finding.facts.items()}, allow_nan=False)
    text = finding_text(found(rule, "r", 5, **json.loads(stored)))
    assert text == finding_text(finding)
    assert text.startswith(f"{rule.promise} is broken: ")
    if float in rule.facts.values() and not math.isfinite(number):
        assert any(each == str(number) for each in finding.facts.values())


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"num_step": 3, "bound": 4}, "takes no fact num_step: num_steps, bound"),
        ({"num_steps": 3}, "the fact bound of the rule step-bound is missing, but must be int"),
        ({"num_steps": "3", "bound": 4}, "the fact num_steps of the rule step-bound is '3', but must"),
    ],
    ids=["misspelt", "missing", "ill-typed"],
)
def test_a_wrong_fact_is_refused_at_once(facts: dict[str, object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        found(Rule.STEP_BOUND, **facts)


def test_the_first_finding_survives_what_a_later_check_raises() -> None:
    def findings(*, is_broken: bool) -> Iterator[Finding]:
        if is_broken:
            yield found(Rule.STATED, what="first")
        raise ZeroDivisionError

    with pytest.raises(BrokenPromise, match="first"):
        require(findings(is_broken=True))
    with pytest.raises(ZeroDivisionError):
        require(findings(is_broken=False))


def test_no_call_of_findings_stands_alone() -> None:
    """They are generators: such a call would check nothing."""
    for path in (*PACKAGE.rglob("*.py"), *SUITE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        is_suspect = re.search(r"^\s+[\w.]*findings\(", source, re.MULTILINE)
        for node in ast.walk(ast.parse(source)) if is_suspect else ():
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)
                assert not called.endswith("findings"), f"{path}:{node.lineno} checks nothing"


def test_each_rule_has_words_and_each_kind_of_replay_a_rule() -> None:
    assert all(rule.words for rule in Rule)
    assert Rule.by_id("late-rows") is Rule.LATE_ROWS
    assert set(Promise) - CAUSE_OF_PROMISE.keys() == {Promise.P1, Promise.P5, Promise.P8}
    assert {rule.replay for rule in Rule} == set(Replay)
