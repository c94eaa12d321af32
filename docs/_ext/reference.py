"""Sphinx extension: the pages of the reference, made of the code when the site is built.

    ```{reference} contract
    ```

stands for what `contract()` below returns, and so for each other part.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import source_text as source
from docutils import nodes
from promise_text import promises
from source_text import code, table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from batchproof import records
from batchproof.__main__ import COMMANDS
from batchproof.plugin.options import pytest_addoption
from batchproof.records.file_kinds import FileKind
from batchproof.records.journal import JournalKind

CONTRACT = ("batchproof.api", "batchproof.decoding.sampling", "batchproof.decoding.speculation")


def contract() -> Iterator[str]:
    """Yields every public class and function of the contract, in the order of the source."""
    for name in CONTRACT:
        module = importlib.import_module(name)
        tree = source.tree_of(module)
        yield f"## `{name}`\n\n{source.documented(tree)}"
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield from _definition(node, module)


def _definition(node: ast.ClassDef | ast.FunctionDef, module: ModuleType) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield f"### `{node.name}`\n\n```python\n{source.signature(node)}\n```"
        yield source.documented(node)
        return
    yield f"### `{node.name}`\n\n{source.documented(node)}"
    rows = list(source.fields_of(node, Path(inspect.getfile(module))))
    if rows:
        cells = [(code(each.name), code(each.kind), code(each.default), each.comment) for each in rows]
        is_enum = not any(each.kind for each in rows)
        head = ("member", "", "value") if is_enum else ("field", "type", "default")
        yield table((*head, "meaning"), cells)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            said = source.documented(method).replace("\n", "\n  ")
            yield f"`{source.signature(method)}`\n: {said}"


def files() -> Iterator[str]:
    """Yields every kind of result file and journal, with the records it is made of, each once."""
    shown: list[type] = []
    for kind in _file_kinds():
        title = kind.schema.partition("/")[0].removeprefix("batchproof.").replace("-", " ")
        yield f"## {getattr(kind, 'what', title)}\n\nSchema `{kind.schema}`."
        roots = [kind.head, kind.entry] if isinstance(kind, JournalKind) else [kind.record]
        if isinstance(kind, JournalKind):
            head, entry = (each.__name__ for each in roots)
            yield f"The first line holds `schema` and a `{head}`, each further line one `{entry}`."
        else:
            yield f"One JSON object: `schema`, and the keys of a `{roots[0].__name__}`."
        num_known = len(shown)
        for root in roots:
            _collect(root, shown)
        for record in shown[num_known:]:
            yield from _record(record)


def _file_kinds() -> list[Any]:
    """Returns the kinds of files that the package declares, sorted by schema."""
    found = {}
    for each in pkgutil.iter_modules(records.__path__, "batchproof.records."):
        for value in vars(importlib.import_module(each.name)).values():
            if isinstance(value, FileKind | JournalKind):
                found[value.schema] = value
    return [found[schema] for schema in sorted(found)]


def _collect(kind: Any, found: list[type]) -> None:
    """Adds a record and all records that it holds, unless they are there already."""
    if isinstance(kind, type) and is_dataclass(kind) and kind not in found:
        found.append(kind)
        for hint in get_type_hints(kind).values():
            _collect(hint, found)
    for argument in get_args(kind):
        _collect(argument, found)


def _record(record: type) -> Iterator[str]:
    node = source.class_of(record)
    rows = []
    for each in source.fields_of(node, Path(inspect.getfile(record))):
        renamed = re.fullmatch(r"Annotated\[(.+), Field\(alias='(.+)'\)\]", each.kind)
        kind, key = renamed.groups() if renamed else (each.kind, each.name)
        rows.append((code(key), code(kind), code(each.default), each.comment))
    yield f"### `{record.__name__}`\n\n{source.documented(node)}"
    if rows:
        yield table(("key", "type", "default", "meaning"), rows)


def commands() -> Iterator[str]:
    """Yields every command with its options, and the options of pytest that the plugin adds."""
    for name, command in COMMANDS.items():
        module = importlib.import_module(command.module)
        parser = argparse.ArgumentParser(
            prog=f"batchproof {name}",
            add_help=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, width=84),
        )
        module.add_arguments(parser)
        where = " In a checkout only." if command.needs_checkout else ""
        usage = inspect.cleandoc(parser.format_usage().removeprefix("usage: "))
        more = (inspect.getdoc(module) or "").partition("\n\n")[2]  # the first paragraph is the purpose
        yield f"## `{name}`\n\n{command.purpose[0].upper()}{command.purpose[1:]}.{where}"
        yield f"```text\n{usage}\n```\n\n{more}"
        rows = [_option(each) for each in parser._actions if each.help != argparse.SUPPRESS]
        yield table(("argument", "meaning"), rows) if rows else ""


def _option(action: argparse.Action) -> tuple[str, str]:
    form = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        form += f" {action.metavar or action.dest.upper()}"
    return code(form), (action.help or "") % {"default": action.default, "prog": "batchproof"}


class _Group(argparse.ArgumentParser):
    """Takes options as a group of pytest's parser does: that one shows none."""

    addoption = argparse.ArgumentParser.add_argument


class _Parser(dict[str, _Group]):
    """Takes groups of options as pytest's parser does: title -> group."""

    def getgroup(self, name: str, description: str = "") -> _Group:
        """Returns the group of this title, new if there is none."""
        return self.setdefault(description or name, _Group(add_help=False))


def options() -> Iterator[str]:
    """Yields the options that the plugin adds to pytest, group by group."""
    parser = _Parser()
    pytest_addoption(parser)  # type: ignore[arg-type]
    for title, group in parser.items():
        yield f"## {title.removeprefix('Batchproof: ').capitalize()}"
        yield table(("option", "meaning"), [_option(each) for each in group._actions])


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    each.__name__: each for each in (contract, promises, files, commands, options)
}


class Reference(SphinxDirective):
    """`{reference} PART`: the part, parsed as Markdown."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the nodes of the part. Raises `KeyError` for one that does not exist."""
        self.env.note_reread()  # the code may have changed
        text = "\n\n".join(PARTS[self.arguments[0]]())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("reference", Reference)
    return {"parallel_read_safe": True}
