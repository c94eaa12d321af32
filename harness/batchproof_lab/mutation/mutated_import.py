"""Makes Python import an engine again, with one file of it changed in memory, or with statements that
note that they are executed."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import cast
from unittest import mock

import torch

from batchproof_lab.conformance_modules import swap_modules
from batchproof_lab.mutation.operators import Mutant

ENGINES = "batchproof_engines"  # one may import another's files
Statements = set[tuple[str, int]]  # file, and the line on which the statement begins
NOTE = "__batchproof_note__"


@contextmanager
def mutated(mutant: Mutant, sources: Iterable[Path]) -> Iterator[None]:
    """Surrounds a suite run in which the engine is the mutant. Nothing is written to disk."""
    path = mutant.path.resolve()
    text = mutant.source()

    def changed(file: Path) -> bytes | None:
        return text if file == path else None

    # Compilers of torch read the text of a function through `inspect`.
    lines = text.decode().splitlines(keepends=True)
    known = {str(path): (len(text), None, lines, str(path))}
    with compiled_otherwise(sources, changed), mock.patch.dict(linecache.cache, known):
        yield


@contextmanager
def compiled_otherwise(
    sources: Iterable[Path], changed: Callable[[Path], bytes | ast.Module | None]
) -> Iterator[None]:
    """Makes the modules of an engine's files and folders be imported again inside, and be as they were
    afterwards. `changed` returns what is compiled in place of a file; None: the file itself."""
    folders = [each.resolve() for each in sources]
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        source = changed(Path(loader.path).resolve())
        if source is None:
            return read(loader, fullname)
        return compile(source, loader.path, "exec", dont_inherit=True)

    def is_meant(name: str, module: ModuleType) -> bool:
        return name.partition(".")[0] == ENGINES or _lies_in(module, folders)

    outer = swap_modules(is_meant, {})
    try:
        with mock.patch.object(SourceFileLoader, "get_code", get_code):
            yield
    finally:
        for module in swap_modules(is_meant, outer).values():
            _release_operators(module)


def _release_operators(module: ModuleType) -> None:
    """Takes back the torch operators that a module has defined: no name can be defined twice."""
    for value in vars(module).values():
        if isinstance(value, torch.library.Library):
            value._destroy()


def _lies_in(module: ModuleType, folders: Iterable[Path]) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and any(_resolved(file).is_relative_to(each) for each in folders)


@cache  # of thousands of modules, for each mutant twice
def _resolved(file: str) -> Path:
    return Path(file).resolve()


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
