"""YAML nodes that know their file and line. The schemas made of them are closed: an unknown key, a
missing one, a key given twice (plain loaders silently keep the last) or a wrong type is a
`CaseError`."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from batchproof.errors import CaseError
from batchproof.places import PACKAGE
from batchproof.validation import values
from batchproof.validation.source_lines import SourceLine, read_text, shown_path

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has it


def package_yaml(path: str) -> Any:
    """Returns what a file of this package holds. Such a file is code: it is right."""
    return yaml.load((PACKAGE / path).read_text("utf-8"), LOADER)


KINDS = {"str": "a text", "int": "a number", "float": "a decimal number", "bool": "true or false"}
KINDS |= {"null": "nothing", "seq": "a list", "map": "a mapping", "timestamp": "a date"}


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A YAML node with its name and file. Each reading method returns a plain value, or raises
    `CaseError` if the node holds another type or breaks the rule named."""

    node: yaml.Node
    what: str
    path: str

    @property
    def place(self) -> SourceLine:
        return SourceLine(self.path, self.node.start_mark.line + 1)

    @property
    def kind(self) -> str:
        """YAML's name of the type: str, int, float, bool, null, seq, map, ..."""
        return str(self.node.tag).rpartition(":")[2]

    def wrong(self, should_be: str) -> CaseError:
        value = f"{self.node.value!r}, " if isinstance(self.node, yaml.ScalarNode) else ""
        kind = KINDS.get(self.kind, f"of kind {self.kind!r}")
        return self.place.error(f"{self.what} is {value}{kind}, but must be {should_be}")

    def text(self) -> str:
        """A text; a number must be quoted."""
        if not isinstance(self.node, yaml.ScalarNode) or self.kind != "str":
            raise self.wrong("a text" + (" (put it in quotes)" if self.kind == "int" else ""))
        return str(self.node.value)

    def words(self) -> str:
        """A text that is not blank."""
        if not self.text().strip():
            raise self.wrong("a text that is not blank")
        return self.text()

    def texts(self) -> list[str]:
        """A text, or a list of different ones; numbers become texts."""
        nodes = self.items("") if self.kind == "seq" else [self]
        if not all(each.kind in ("str", "int", "float") for each in nodes):
            raise self.wrong("a text or a number, or a list of these")
        texts = [str(each.node.value) for each in nodes]
        if not texts or len(set(texts)) < len(texts):
            twice = [each for each in texts if texts.count(each) > 1]
            problem = f"names {twice[0]!r} twice" if twice else "is an empty list"
            rule = "but must hold one or more different values"
            raise self.place.error(f"{self.what} {problem}, {rule}")
        return texts

    def integer(self, at_least: int | None = None) -> int:
        """A whole number in plain decimal notation."""
        value = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        if self.kind != "int" or not re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,17})", value):
            raise self.wrong("a whole number of at most 18 plain digits")
        number = int(value)
        with self.place.located():
            return number if at_least is None else values.at_least(self.what, number, at_least)

    def value(self) -> object:
        """Returns whatever the node holds, as plain values."""
        try:
            return SafeConstructor().construct_document(self.node)
        except yaml.MarkedYAMLError as error:
            raise _invalid(error, self.path) from None
        except ValueError as error:  # of a date that is none
            raise self.place.error(f"{self.what} cannot be read: {error}") from None

    def boolean(self) -> bool:
        value = self.node.value.lower() if self.kind == "bool" else ""
        if value not in ("true", "false"):
            raise self.wrong("true or false")
        return bool(value == "true")

    def choice(self, choices: Iterable[str]) -> str:
        """A text that is one of the choices."""
        with self.place.located():
            return values.one_of(self.what, self.text(), choices)

    def items(self, each: str, rule: str = "a list") -> list["YamlNode"]:
        """The nodes of a list, each called `each`. `rule` says what it should be."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(rule)
        return [YamlNode(node, each, self.path) for node in self.node.value]

    def entries(self) -> list["YamlNode"]:
        """The nodes of a list with at least one item."""
        if isinstance(self.node, yaml.SequenceNode) and not self.node.value:
            raise self.place.error(f"{self.what} is an empty list, but must hold at least one item")
        return self.items(f"an item of {self.what}")

    def pairs(self, rule: str = "a mapping") -> dict[str, "YamlNode"]:
        """The values of a mapping by keys that are unique texts. `rule` says what it should be."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(rule)
        found: dict[str, YamlNode] = {}
        for key_node, value in self.node.value:
            key = YamlNode(key_node, f"a key of {self.what}", self.path)
            name = key.text()
            if name in found:
                first = found[name].place.line
                raise key.place.error(f"key {name!r} is twice in {self.what}, first in line {first}")
            found[name] = YamlNode(value, name, self.path)
        return found

    def mapping(self, known: Collection[str], required: Sequence[str] = ()) -> dict[str, "YamlNode"]:
        """The values of a mapping whose keys are among `known` and include `required`."""
        found = self.pairs()
        for name, item in found.items():
            if name not in known:
                hint = values.near(name, known)
                raise item.place.error(f"{self.what} has no key {name!r}; {hint}")
        if missing := [repr(name) for name in required if name not in found]:
            keys = "key" if len(missing) == 1 else "keys"
            raise self.place.error(f"{self.what} lacks the {keys} {', '.join(missing)}")
        return found


def yaml_files(directory: Path, what: str) -> list[Path]:
    """Returns the `*.yaml` of a directory in order, each holding one `what`. Raises `CaseError` if
    there is none, or a `*.yml`."""
    for path in sorted(directory.glob("*.yml")):
        message = f"a {what} must end in .yaml, or it would be overlooked"
        raise SourceLine(shown_path(path), 1).error(message)
    paths = sorted(directory.glob("*.yaml"))
    if not paths:
        raise SourceLine(shown_path(directory), 1).error(f"there is no {what} (*.yaml) here")
    return paths


def read_yaml(path: Path, what: str, content: str, if_empty: str = "") -> YamlNode:
    """Returns the root of a file, called `what`. An empty file stands for the YAML of `if_empty`.
    Raises `CaseError` if the file cannot be read, is no YAML, or is empty and so lacks `content`."""
    shown, text = shown_path(path), read_text(path)
    try:
        root = yaml.compose(text, Loader=LOADER) or yaml.compose(if_empty)
    except yaml.MarkedYAMLError as error:
        raise _invalid(error, shown) from None
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise SourceLine(shown, 1).error(f"this file cannot be read as YAML: {problem}") from None
    if root is None:
        raise SourceLine(shown, 1).error(f"the file is empty, but must hold {content}")
    return YamlNode(root, what, shown)


def _invalid(error: yaml.MarkedYAMLError, shown: str) -> CaseError:
    mark = error.problem_mark or error.context_mark
    place = SourceLine(shown, mark.line + 1 if mark else 1)
    return place.error(f"this is no valid YAML: {error.problem or error.context}")
