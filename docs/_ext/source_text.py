"""What the source says of itself: docstrings, and the comments behind fields, as Markdown.

Fields of the contract and of the records are explained in comments behind them, and docstrings are
Markdown. Sphinx's autodoc drops the first and takes the second for reStructuredText, so it is not used.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Field:
    """A field of a class, or a member of an enum, as it is written."""

    name: str
    kind: str
    default: str
    comment: str


@cache
def _parsed(path: Path) -> tuple[ast.Module, dict[int, str], frozenset[int]]:
    """Returns the tree of a file, its comments by line, and the lines that hold nothing else."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {each.start[0]: each.string for each in tokens if each.type == tokenize.COMMENT}
    alone = frozenset(line for line in comments if lines[line - 1].lstrip().startswith("#"))
    return ast.parse(source), comments, alone


def tree_of(module: ModuleType) -> ast.Module:
    """Returns the tree of a module's source."""
    return _parsed(Path(inspect.getfile(module)))[0]


def class_of(kind: type) -> ast.ClassDef:
    """Returns the source of a class."""
    nodes = _parsed(Path(inspect.getfile(kind)))[0].body
    return next(each for each in nodes if isinstance(each, ast.ClassDef) and each.name == kind.__name__)


def fields_of(node: ast.ClassDef, path: Path) -> Iterator[Field]:
    """Yields the fields of a class, or the members of an enum."""
    _, comments, alone = _parsed(path)
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, kind = each.target.id, ast.unparse(each.annotation)
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name, kind = each.targets[0].id, ""
        else:
            continue
        default = "" if each.value is None else _shown_default(each.value)
        if not name.startswith("_"):
            yield Field(name, kind, default, _comment(each, comments, alone))


def _shown_default(value: ast.expr) -> str:
    """Returns a default as a reader writes it."""
    text = ast.unparse(value)
    if text.startswith("field("):
        given = re.search(r"default(?:_factory)?=(\w+)", text)
        text = {"dict": "{}", "list": "[]", None: ""}.get(given and given[1], given[1] if given else "")
    return text


def _comment(node: ast.stmt, comments: dict[int, str], alone: frozenset[int]) -> str:
    """Returns what the comment behind a field says, in one line; it may go on below."""
    lines = [line for line in range(node.lineno, (node.end_lineno or 0) + 1) if line in comments]
    if lines:
        following = (node.end_lineno or 0) + 1
        while following in alone:
            lines.append(following)
            following += 1
    text = " ".join(comments[line].lstrip("# ") for line in lines)
    return re.sub(r"\s*\bnoqa\b.*", "", text)


def documented(node: ast.AST) -> str:
    """Returns a docstring as Markdown; empty without one."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    return ast.get_docstring(node) or ""


def first_sentence(text: str) -> str:
    """Returns the first paragraph's first sentence, in one line."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", paragraph)[0]


def signature(node: ast.FunctionDef) -> str:
    """Returns how a function is written where it is used, with types: `step() -> list[TokenEvent]`, or
    `trace: Sequence[StepRecord]` for a property."""
    returned = ast.unparse(node.returns) if node.returns else "None"
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return f"{node.name}: {returned}"
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    return f"{node.name}({arguments}) -> {returned}"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table in Markdown, without the columns that are empty in every row."""
    used = [index for index, _ in enumerate(head) if any(row[index] for row in rows)]
    lines = [[head[index] for index in used], ["---"] * len(used)]
    lines += [[row[index].replace("|", "\\|") for index in used] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Returns a text as inline code; nothing stays nothing."""
    return f"`{text}`" if text else ""
