"""Makes Python import an engine anew, with one file of it changed in memory."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from unittest import mock

import torch

from batchproof_lab.conformance_modules import swapped
from batchproof_lab.mutation.operators import Mutant

ENGINES = "batchproof_engines"  # one may import another's files


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
    """Makes the modules of an engine's files and folders be imported anew inside, and be as they were
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

    outer = swapped(is_meant, {})
    try:
        with mock.patch.object(SourceFileLoader, "get_code", get_code):
            yield
    finally:
        for module in swapped(is_meant, outer).values():
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
