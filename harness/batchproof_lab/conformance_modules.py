"""The conformance tests as modules: their functions, and importing them once per profile."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from batchproof.places import ROOT, SUITE

PROMISE, MARK = re.compile(r"'(P\d+)'"), re.compile(r"pytest\.mark\.(\w+)")
PLANTED = ("batchproof_engines.faulty", "batchproof_engines.odd")
Modules = dict[str, ModuleType]
_known: dict[str, Modules] = {}  # settings a module was imported under -> modules


@contextmanager
def modules_of_run(settings: str) -> Iterator[None]:
    """Makes the conformance tests those that were imported under these settings, or lets them be
    imported; planted faults and oddities are imported again.

    A test keeps the settings it was imported under, and parsing the curated cases takes longer than
    many a suite run. So modules are neither shared between settings nor imported again each time. What
    an engine keeps on its class must not depend on earlier suite runs.
    """
    outer = _swap_modules(_known.get(settings, {}))
    try:
        yield
    finally:
        own = _swap_modules(outer)
        _known[settings] = {name: each for name, each in own.items() if not name.startswith(PLANTED)}


def _swap_modules(new: Modules) -> Modules:
    """Replaces the modules of tests, faults and oddities by `new` and returns the old ones."""
    old = {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith(PLANTED) or str(getattr(module, "__file__", None)).startswith(str(SUITE))
    }
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)
    return old


@dataclass(frozen=True, slots=True)
class Facts:
    """What the source of a test function states about it."""

    is_generated: bool  # by Hypothesis: it is decorated with `@given(...)`
    promises: frozenset[str]  # of its marks, else of its module's; a case brings its own
    marks: frozenset[str]  # names of its pytest marks and of its module's
    on_model: str | None  # the only model that it runs on


@cache
def conformance_functions() -> dict[str, Facts]:
    """Returns each conformance test function, by its node id without parameters."""
    found: dict[str, Facts] = {}
    for path in sorted(SUITE.glob("test_*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        of_module = _written(node.value for node in body if isinstance(node, ast.Assign))
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = _written(node.decorator_list)
                on_model = re.search(r"pytest\.mark\.on_model\('(.+?)'\)", own)
                found[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = Facts(
                    is_generated=re.search(r"^given\(", own, re.MULTILINE) is not None,
                    promises=frozenset(PROMISE.findall(own) or PROMISE.findall(of_module)),
                    marks=frozenset(MARK.findall(f"{of_module}\n{own}")),
                    on_model=on_model and on_model[1],
                )
    return found


def _written(nodes: Iterable[ast.expr]) -> str:
    """Returns expressions as Python writes them, one in each line."""
    return "\n".join(map(ast.unparse, nodes))


def function_of(test_id: str) -> str:
    return test_id.partition("[")[0]
