"""The page of the promises, made of promises, rules, tests, curated cases and planted faults."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import source_text as source
from source_text import code, table

from batchproof.cases.files import load_cases
from batchproof.findings.rules import Rule
from batchproof.places import PACKAGE, SUITE
from batchproof.requirements.promises import Promise
from batchproof.run.registry import faults

DECIDING = ("checks", "run", "cases", "plugin")  # rooms whose functions raise findings
MARK = re.compile(r"pytest\.mark\.(promise|needs|shows)\((.*?)\)")


@dataclass(frozen=True)
class SuiteTest:
    """A test function of the suite. `needs`: capabilities without which it is skipped."""

    name: str
    promises: tuple[str, ...]
    needs: tuple[str, ...]


def promises() -> Iterator[str]:
    """Yields each promise: its rules and where they are decided, its tests, and the bugs behind it."""
    decided, tests, cases, planted = _decided(), list(suite_tests()), load_cases(), faults().values()
    for promise in Promise:
        name = promise.id
        its_tests = [each for each in tests if name in each.promises]
        its_cases = [each for each in cases if each.promise is promise]
        its_faults = [each for each in planted if each.promise is promise]
        yield f"## {promise}\n\n> {promise.sentence}"
        counted = f"{_count(len(its_tests), 'test')} and {_count(len(its_cases), 'curated case')}"
        yield f"Decided by {counted}; planted faults that break it: {len(its_faults)}."
        yield _rules(promise, decided)
        yield "**Tests**" if its_tests else ""
        yield "\n".join(f"* {_test(each)}" for each in its_tests)
        links = {each.link for each in its_cases if each.link} | {_url(each) for each in its_faults}
        yield _bugs(sorted(links))


def _rules(promise: Promise, decided: dict[Rule, list[str]]) -> str:
    rows = []
    for rule in Rule:
        if rule.promise is promise:
            shown = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", rule.words[0])
            rows.append((code(rule.id), shown, "<br>".join(decided.get(rule, []))))
    if not rows:
        raise ValueError(f"no rule can find {promise} broken")
    return table(("rule", "a report says", "decided in"), rows)


def _decided() -> dict[Rule, list[str]]:
    """Returns for each rule the functions that find it broken, and what they say of themselves: the
    checks or, where no check does, those that run engines and cases."""
    found: dict[Rule, list[str]] = {}
    for room in DECIDING:
        in_room: dict[Rule, list[str]] = defaultdict(list)
        for path in sorted((PACKAGE / room).rglob("*.py")):
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
            for each in functions:
                for rule in _rules_named(each):
                    said = [
                        f"`{module}.{one.name}`: {_said(one)}" for one in _speakers(each, functions)
                    ]
                    in_room[rule] += [text for text in said if text not in in_room[rule]]
        found = dict(in_room) | found
    return found


def _speakers(function: ast.FunctionDef, functions: list[ast.FunctionDef]) -> list[ast.FunctionDef]:
    """Returns the function, or those of its module that call it if it says nothing of itself."""
    if _said(function):
        return [function]
    callers = [
        each
        for each in functions
        if each is not function
        and any(isinstance(one, ast.Name) and one.id == function.name for one in ast.walk(each))
    ]
    return [each for caller in callers for each in _speakers(caller, functions)]


def _said(function: ast.FunctionDef) -> str:
    return source.first_sentence(source.documented(function))


def _rules_named(node: ast.FunctionDef) -> set[Rule]:
    return {
        Rule[each.attr]
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "Rule"
        and each.attr in Rule.__members__
    }


def suite_tests() -> Iterator[SuiteTest]:
    """Yields the test functions of the suite with their promises and capabilities."""
    for path in sorted(SUITE.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_all = [
            each
            for each in tree.body
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = _marks([*(each.value for each in of_all), *node.decorator_list])
                if marks["promise"]:
                    yield SuiteTest(node.name, marks["promise"], marks["needs"] + marks["shows"])


def _marks(expressions: list[ast.expr]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {"promise": (), "needs": (), "shows": ()}
    for mark, arguments in MARK.findall(" ".join(map(ast.unparse, expressions))):
        found[mark] += tuple(re.findall(r"'([\w]+)'", arguments))
    return found


def _test(test: SuiteTest) -> str:
    words = test.name.removeprefix("test_").replace("_", " ")
    needs = f" (needs {', '.join(map(code, test.needs))})" if test.needs else ""
    return f"{words}{needs}"


def _url(fault: object) -> str:
    repository, _, number = str(fault.thread).partition("#")  # type: ignore[attr-defined]
    return f"https://github.com/{repository}/issues/{number}"


def _bugs(links: list[str]) -> str:
    if not links:
        return "Its rules follow from the contract; no public report is behind them."
    listed = ", ".join(f"[{_short(link)}]({link})" for link in links)
    return f"**Reports behind its cases and faults ({len(links)})**: {listed}"


def _short(link: str) -> str:
    return re.sub(r"https://github.com/(.+?)/(?:issues|pull)/(\d+).*", r"\1#\2", link)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
