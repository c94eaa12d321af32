"""Code as a digest: has the fault of a row of the kill table, or its test, changed since? Are two
journals of the same code?"""

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import batchproof_engines
from batchproof.places import ROOT
from batchproof.records.provenance import versions
from batchproof.records.suite_stamp import suite_digest

Definitions = dict[str, ast.stmt]  # of a module: what its top level gives a name to


def code_digest() -> str:
    """Returns a digest of all that the outcome of a task depends on: the suite, the engines, and the
    versions of the libraries."""
    digest = hashlib.sha256(repr((versions(), suite_digest())).encode())
    engines = Path(batchproof_engines.__file__).parent
    for file in sorted(each for each in engines.rglob("*") if each.suffix in (".py", ".yaml")):
        digest.update(str(file.relative_to(engines)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def fingerprint(fault: type, tests: Iterable[str | None]) -> str:
    """Returns a digest of a planted fault's class and of the test functions that caught it.

    Includes whatever these use of their own files, and leaves out comments, docstrings and layout.
    `tests` are node ids without parameters; a function that no longer exists has an empty text.
    """
    sources = [(Path(inspect.getfile(fault)), fault.__name__)]
    for test in sorted(filter(None, tests)):
        path, _, function = test.partition("::")
        sources.append((ROOT / path, function))
    text = "\n".join(code_of(path, name) for path, name in sources)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_of(path: Path, name: str) -> str:
    """Returns the syntax trees of a definition and of all that it uses of its file, as text."""
    known = _definitions(path) if path.is_file() else {}
    wanted, found = [name], dict[str, str]()
    while wanted:
        if (each := wanted.pop()) in known and each not in found:
            found[each], used = _read(path, each)
            wanted += used
    return "\n".join(found[each] for each in sorted(found))


@cache
def _definitions(path: Path) -> Definitions:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {name: node for node in body for name in _names(node)}


@cache
def _read(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    node = _without_words(_definitions(path)[name])
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return ast.dump(node), tuple(used)


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for each in targets if isinstance(each, ast.Name))


def _without_words(node: ast.stmt) -> ast.stmt:
    for each in ast.walk(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(each, clean=False):
            del each.body[0]
    return node
