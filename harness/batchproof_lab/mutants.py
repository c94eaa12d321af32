"""Mutants of a Python source: every point at which one small change makes one, and its import.

The operators are the common ones of mutation testing (DeMillo, Lipton and Sayward 1978): comparisons,
arithmetic, constants, conditions, slices, calls and statements. What an engine does not compute with
is left alone: annotations, docstrings, decorators, assertions, `strict` of `zip` among them, and the
texts of errors.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from unittest import mock

import torch

from batchproof.places import ROOT
from batchproof_lab.conformance_modules import swap_modules

ENGINES = "batchproof_engines"

PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.BitAnd, ast.BitOr),
    (ast.And, ast.Or),
    (ast.Break, ast.Continue),
)
SWAPS = {a: b for one, other in PAIRS for a, b in ((one, other), (other, one))} | {
    ast.Mod: ast.FloorDiv
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)  # conditions with no operator of their own
UNTOUCHED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source file with one expression or statement replaced.

    `begin` and `end` are offsets in bytes of the UTF-8 text; `ordinal` counts equal changes in one
    function.
    """

    path: Path
    function: str  # qualified name within the module, empty at its top level
    line: int
    begin: int
    end: int
    before: str
    after: str
    ordinal: int = 0

    def source(self) -> bytes:
        text = self.path.read_bytes()
        return text[: self.begin] + self.after.encode() + text[self.end :]

    @property
    def name(self) -> str:
        """What identifies the mutant while its function stays as it is, wherever it stands."""
        file = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        again = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{file.as_posix()}::{self.function or 'module'}: {self.before} => {self.after}{again}"


def mutants_of(path: Path) -> list[Mutant]:
    text = path.read_bytes()
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    found, seen = [], Counter[tuple[str, str, str]]()
    for function, node, after in _points(ast.parse(text), ""):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        key = (function, ast.unparse(node), ast.unparse(after))
        found.append(
            Mutant(
                path,
                function,
                node.lineno,
                starts[node.lineno - 1] + node.col_offset,
                starts[node.end_lineno - 1] + node.end_col_offset,
                key[1],
                f"({key[2]})" if isinstance(after, ast.expr) and not _is_atom(after) else key[2],
                seen[key],
            )
        )
        seen[key] += 1
    return found


Point = tuple[str, ast.expr | ast.stmt, ast.AST]  # function, node, what takes its place


def _points(node: ast.AST, function: str) -> Iterator[Point]:
    if isinstance(node, ast.expr | ast.stmt):
        yield from ((function, node, after) for after in _changes(node))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, PLAIN):
        yield function, node.test, ast.UnaryOp(ast.Not(), node.test)
    for child in _children(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        name = getattr(child, "name", "") if is_scope else ""
        yield from _points(child, ".".join(filter(None, (function, name))))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    skipped = {"annotation", "returns", "decorator_list", "bases", "type_comment"}
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_strict = isinstance(child, ast.keyword) and child.arg == "strict"
            if field in skipped or is_strict or isinstance(child, UNTOUCHED):
                continue
            if isinstance(child, ast.AST):
                yield child


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Break() | ast.Continue():
            yield SWAPS[type(node)]()
        case ast.stmt() if _is_effect(node):
            yield ast.Pass()
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield _with(node, ops=[SWAPS[type(op)]()])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            yield _with(node, op=SWAPS[type(op)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from map(ast.Constant, (value + 1, value - 1) if value > 0 else (value + 1,))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _with(node, func=ast.Name(CALLS[name]))
        case ast.Subscript(slice=ast.Slice() as bounds):
            for bound in ("lower", "upper"):
                if getattr(bounds, bound) is not None:
                    yield _with(node, slice=_with(bounds, **{bound: None}))


def _is_effect(node: ast.AST) -> bool:
    """Returns whether the statement can be left out and its function still be read."""
    if isinstance(node, ast.Assign):
        return all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
    return isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_atom(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Name | ast.Call | ast.Attribute | ast.Subscript)


@contextmanager
def mutated(mutant: Mutant | None, source: Path) -> Iterator[None]:
    """Surrounds a suite run in which the engine is the mutant: all engines are imported again inside,
    with the change in memory, and are as they were afterwards. `source` is the engine's file or folder.
    """
    path, text = (mutant.path.resolve(), mutant.source()) if mutant else (None, b"")
    root = source.resolve()
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(loader.path).resolve() != path:
            return read(loader, fullname)
        return compile(text, loader.path, "exec", dont_inherit=True)

    def is_meant(name: str, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        is_engine = name.partition(".")[0] == ENGINES  # one may import another's files
        return is_engine or (file is not None and _resolved(file).is_relative_to(root))

    # Compilers of torch read the text of a function through `inspect`.
    lines = {str(path): (len(text), None, text.decode().splitlines(keepends=True), str(path))}
    known = lines if mutant else {}
    outer = swap_modules(is_meant, {})
    try:
        with (
            mock.patch.object(SourceFileLoader, "get_code", get_code),
            mock.patch.dict(linecache.cache, known),
        ):
            yield
    finally:
        for module in swap_modules(is_meant, outer).values():
            for value in vars(module).values():
                if isinstance(value, torch.library.Library):
                    value._destroy()  # no operator of torch can be defined twice


@cache  # of thousands of modules, for each mutant twice
def _resolved(file: str) -> Path:
    return Path(file).resolve()
