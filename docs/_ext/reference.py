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
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import source_text as source
from docutils import nodes
from promise_text import promises
from source_text import code, table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from batchproof.__main__ import COMMANDS

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
        has_types = any(each.kind for each in rows)
        head = (
            ("field", "type", "default", "meaning") if has_types else ("member", "", "value", "meaning")
        )
        yield table(head, cells)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            yield f"`{source.signature(method)}`\n: {_indented(source.documented(method))}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def files() -> Iterator[str]:
    """Yields every kind of result file and journal, with the records it is made of."""
    shown: set[type] = set()
    for kind in _file_kinds():
        is_journal = hasattr(kind, "entry")
        title = kind.schema.partition("/")[0].removeprefix("batchproof.").replace("-", " ")
        yield f"## {getattr(kind, 'what', title)}\n\nSchema `{kind.schema}`."
        roots = [kind.head, kind.entry] if is_journal else [kind.record]
        yield (
            f"A journal: the first line holds `schema` and a `{roots[0].__name__}`, each further line "
            f"one `{roots[1].__name__}`."
            if is_journal
            else f"One JSON object: `schema`, and the keys of a `{roots[0].__name__}`."
        )
        for record in [each for root in roots for each in _records(root)]:
            if record not in shown:
                shown.add(record)
                yield from _record(record)


def _file_kinds() -> list[Any]:
    """Returns the kinds of files that the package declares, sorted by schema."""
    package = importlib.import_module("batchproof.records")
    names = [f"batchproof.records.{each.name}" for each in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(name) for name in names]
    kinds = {
        each.schema: each
        for module in modules
        for each in vars(module).values()
        if type(each).__name__ in ("FileKind", "JournalKind")
    }
    return [kinds[schema] for schema in sorted(kinds)]


def _records(kind: Any) -> Iterator[type]:
    """Yields a record and all records that it holds, each once."""
    found: list[type] = []

    def collect(each: Any) -> None:
        if isinstance(each, type) and is_dataclass(each) and each not in found:
            found.append(each)
            for hint in get_type_hints(each).values():
                collect(hint)
        for argument in get_args(each):
            collect(argument)

    collect(kind)
    return iter(found)


def _record(record: type) -> Iterator[str]:
    node = source.class_of(record)
    written = {each.name: each for each in source.fields_of(node, Path(inspect.getfile(record)))}
    hints = get_type_hints(record, include_extras=True)
    rows = []
    for each in fields(record):
        found = written[each.name]
        is_renamed = get_origin(hints[each.name]) is Annotated
        key = hints[each.name].__metadata__[0].name if is_renamed else each.name
        kind = re.sub(r"Annotated\[(\w+), .*", r"\1", found.kind)
        rows.append((code(key), code(kind), code(found.default), found.comment))
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
        _, _, more = (inspect.getdoc(module) or "").partition(
            "\n\n"
        )  # the first says the purpose again
        yield f"## `{name}`\n\n{command.purpose[0].upper()}{command.purpose[1:]}.{where}"
        yield f"```text\n{usage}\n```\n\n{more}"
        rows = [_option(each) for each in parser._actions if each.help != argparse.SUPPRESS]
        yield table(("argument", "meaning"), rows) if rows else ""


def _option(action: argparse.Action) -> tuple[str, str]:
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = action.metavar if action.option_strings and action.nargs != 0 else None
    value = value or (action.dest.upper() if action.option_strings and action.nargs != 0 else None)
    filled = {"default": action.default, "prog": "batchproof"}
    text = (action.help or "") % filled
    return code(f"{names} {value}" if value else names), text


class _Parser:
    """Takes options as pytest's parser does, and keeps them by group: that one shows none."""

    def __init__(self) -> None:
        self.groups: dict[str, list[tuple[str, ...]]] = {}
        self._group = ""

    def getgroup(self, name: str, description: str = "") -> _Parser:
        """Begins a group of options."""
        self._group = description or name
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        """Keeps an option of the group."""
        form = f"{', '.join(names)} {attributes.get('metavar', '')}".strip()
        text = attributes.get("help", "") % {"default": attributes.get("default")}
        self.groups.setdefault(self._group, []).append((code(form), text))


def options() -> Iterator[str]:
    """Yields the options that the plugin adds to pytest, group by group."""
    parser = _Parser()
    importlib.import_module("batchproof.plugin.options").pytest_addoption(parser)
    for group, rows in parser.groups.items():
        title = group.removeprefix("Batchproof: ")
        yield f"## {title[0].upper()}{title[1:]}\n\n{table(('option', 'meaning'), rows)}"


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
