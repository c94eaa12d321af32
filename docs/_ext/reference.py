"""Sphinx extension: the pages of the reference, made of the code when the site is built.

    ```{reference} contract
    ```

stands for what `contract()` below returns, and so for each other part.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from batchproof import records
from batchproof.__main__ import COMMANDS, PLUMBING
from batchproof.cli.commands import Command
from batchproof.findings.finding import Rule
from batchproof.places import SUITE
from batchproof.plugin.active import pytest_addoption
from batchproof.records.file_kinds import FileKind
from batchproof.records.journal import JournalKind
from batchproof.requirements.promises import Promise
from batchproof.run.registry import faults
from batchproof_lab.__main__ import COMMANDS as LAB_COMMANDS

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

CONTRACT = ("batchproof.api", "batchproof.decoding.sampling", "batchproof.decoding.speculation")
TEST = re.compile(r"pytest\.mark\.promise\((.*?)\)|^def test_(\w+)", re.MULTILINE)


def code_block(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.strip()}\n```"


def contract() -> Iterator[str]:
    """Yields the source of the contract: its docstrings and comments are the reference."""
    for name in CONTRACT:
        yield f"## `{name}`\n\n{code_block(inspect.getsource(importlib.import_module(name)))}"


def promises() -> Iterator[str]:
    """Yields each promise with the rules that find it broken, its tests, and the bugs behind it."""
    tests = [
        each for path in sorted(SUITE.glob("test_*.py")) for each in _tests(path.read_text("utf-8"))
    ]
    planted = list(faults().values())
    for promise in Promise:
        threads = sorted({each.thread for each in planted if each.promise is promise})
        yield f"## {promise}\n\n> {promise.sentence}"
        rules = [each for each in Rule if each.promise is promise]
        if not rules:
            raise ValueError(f"no rule can find {promise} broken")
        yield "\n".join(f"* rule `{each.id}`: `{each.words[0]}`" for each in rules)
        yield "\n".join(f"* test: {name}" for names, name in tests if f'"{promise.id}"' in names)
        yield f"Planted faults are modelled on {', '.join(threads) or 'no public report'}."


def _tests(source: str) -> Iterator[tuple[str, str]]:
    """Yields promises and name of each test of a module; a mark holds up to the next one."""
    marked = ""
    for names, test in TEST.findall(source):
        marked = names or marked
        if test:
            yield marked, test.replace("_", " ")


def files() -> Iterator[str]:
    """Yields every kind of result file and journal, with the records it is made of, each once."""
    shown: list[type] = []
    modules = [each.name for each in pkgutil.iter_modules(records.__path__, "batchproof.records.")]
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    kinds = {each.schema: each for each in values if isinstance(each, FileKind | JournalKind)}
    for schema, kind in sorted(kinds.items()):
        roots = [kind.head, kind.entry] if isinstance(kind, JournalKind) else [kind.record]
        yield f"## `{schema}`\n\n" + ("Lines" if isinstance(kind, JournalKind) else "One JSON object")
        num_known = len(shown)
        for root in roots:
            _collect(root, shown)
        yield from (code_block(inspect.getsource(each)) for each in shown[num_known:])


def _collect(kind: Any, found: list[type]) -> None:
    """Adds a record and all records that it holds, unless they are there already."""
    if isinstance(kind, type) and is_dataclass(kind) and kind not in found:
        found.append(kind)
        for hint in get_type_hints(kind).values():
            _collect(hint, found)
    for argument in get_args(kind):
        _collect(argument, found)


def commands() -> Iterator[str]:
    """Yields the help of every command."""
    for name, command in _every_command():
        parser = argparse.ArgumentParser(f"batchproof {name}", add_help=False)
        importlib.import_module(command.module).add_arguments(parser)
        yield f"## `{name}`\n\n{command.purpose}\n\n{code_block(parser.format_help(), 'text')}"


def _every_command() -> Iterator[tuple[str, Command]]:
    """Yields each command with the words that name it."""
    for name, command in (COMMANDS | PLUMBING).items():
        yield name, command
        yield from ((f"{name} {below}", each) for below, each in command.below.items())
    yield from ((f"lab {name}", command) for name, command in LAB_COMMANDS.items())


class _Parser(argparse.ArgumentParser):
    """Takes options, in groups, as pytest's parser does."""

    def getgroup(self, name: str, description: str = "") -> Any:
        group: Any = self.add_argument_group(description or name)
        group.addoption = group.add_argument
        return group


def options() -> Iterator[str]:
    """Yields the help of the options that the plugin adds to pytest."""
    parser = _Parser("pytest", usage=argparse.SUPPRESS, add_help=False)
    pytest_addoption(parser)  # type: ignore[arg-type]
    yield code_block(parser.format_help(), "text")


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    each.__name__: each for each in (contract, promises, files, commands, options)
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive `{reference} PART`: the part, parsed as Markdown."""
    from sphinx.util.docutils import SphinxDirective  # noqa: PLC0415 (only where the site is built)

    class Reference(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            """Returns the nodes of the part. Raises `KeyError` for one that does not exist."""
            self.env.note_reread()  # the code may have changed
            text = "\n\n".join(PARTS[self.arguments[0]]())
            return self.parse_text_to_nodes(text, allow_section_headings=True)

    app.add_directive("reference", Reference)
    return {"parallel_read_safe": True}
