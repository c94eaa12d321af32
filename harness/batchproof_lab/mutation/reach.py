"""Which statements of an engine a suite run executes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from unittest import mock

from batchproof_lab.mutation.mutated_import import compiled_otherwise

Statements = set[tuple[str, int]]  # file, and the line on which the statement begins
NOTE = "__batchproof_note__"


@contextmanager
def statements_noted(sources: Iterable[Path]) -> Iterator[Statements]:
    """Surrounds a suite run with engines whose statements note that they are executed.

    A trace function would be called for every function of torch and Hypothesis too, which makes a run
    ten times as long.
    """
    roots = [each.resolve() for each in sources]
    noted: Statements = set()

    def noting(path: Path) -> ast.Module | None:
        if not any(path.is_relative_to(each) for each in roots):
            return None
        tree = _Noting(str(path)).visit(ast.parse(path.read_bytes()))
        return cast(ast.Module, ast.fix_missing_locations(tree))

    with compiled_otherwise(roots, noting), mock.patch.object(builtins, NOTE, noted.add, create=True):
        yield noted


class _Noting(ast.NodeTransformer):
    """Puts a note before each statement, save what must stay first in its body."""

    def __init__(self, path: str) -> None:
        self._path = path

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, field, [each for old in body for each in self._noted(old)])
        return node

    def _noted(self, node: ast.stmt) -> list[ast.stmt]:
        is_first = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if is_first or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return [node]
        place = ast.Tuple([ast.Constant(self._path), ast.Constant(node.lineno)], ast.Load())
        note = ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), [place], []))
        return [ast.copy_location(note, node), node]
