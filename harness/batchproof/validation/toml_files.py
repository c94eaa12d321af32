"""TOML files, as the nodes of YAML that says the same, with the lines of their keys."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import yaml
from yaml.representer import SafeRepresenter

from batchproof.validation.source_lines import SourceLine, read_text, shown_path
from batchproof.validation.yaml_nodes import YamlNode

KeyPath = tuple[str | int, ...]  # a number is the place of a table in a list of tables
HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
KEY = re.compile(r"\s*([\w-]+)\s*=")
POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def read_toml(path: Path, what: str) -> YamlNode:
    """Returns the root of a file, called `what`. Raises `CaseError` if it cannot be read as TOML."""
    shown, text = shown_path(path), read_text(path)
    try:
        root = SafeRepresenter(sort_keys=False).represent_data(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        found = POSITION.search(str(error))
        line = int(found[1]) if found and found[1] else len(text.splitlines())
        problem = POSITION.sub("", str(error))
        raise SourceLine(shown, line).error(f"this is no valid TOML: {problem}") from None
    _place(root, (), key_lines(text), 1)
    return YamlNode(root, what, shown)


def _place(node: yaml.Node, path: KeyPath, lines: Mapping[KeyPath, int], above: int) -> None:
    """Tells a node and all in it their lines: those of what they are in, where no key shows them."""
    line = lines.get(path, above)
    node.start_mark = yaml.Mark("", 0, line - 1, 0, None, 0)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            for each in (key, value):
                _place(each, (*path, key.value), lines, line)
    elif isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            _place(each, (*path, number), lines, line)


def key_lines(text: str) -> dict[KeyPath, int]:
    """Returns the line of each header, and of each bare key that begins a line. A value of several
    lines that looks like one may add a key of its own, which is looked up by no one."""
    lines: dict[KeyPath, int] = {}
    sizes: Counter[KeyPath] = Counter()  # of lists of tables, so far
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            table = tuple(header[2].split("."))
            for length in range(1, len(table) + 1):  # tables that have no header of their own, too
                lines.setdefault(table[:length], number)
            if header[1] == "[[":
                sizes[table] += 1
                table = (*table, sizes[table] - 1)
                lines[table] = number
        elif key := KEY.match(line):
            lines.setdefault((*table, key[1]), number)
    return lines
