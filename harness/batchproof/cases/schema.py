"""What a curated case is: `Item`, a YAML node that knows its file and line, and the frozen values that
`batchproof.cases.files` makes of such nodes.

A case names no model, so prompts, caps and EOS ids may be symbolic ("a prompt four tokens short of the
context", "the last token of the right answer"). `batchproof.cases.runner` makes them concrete for one.
`cases/README.md` describes the YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from batchproof.api import Capability, EngineConfig, FinishReason
from batchproof.errors import CaseError
from batchproof.promises import Promise


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: every complaint begins with it."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def error(self, message: str) -> CaseError:
        return CaseError(f"{self}: {message}")


KINDS = {"str": "a text", "int": "a number", "float": "a decimal number", "bool": "true or false"}
KINDS |= {"null": "nothing", "seq": "a list", "map": "a mapping", "timestamp": "a date"}


@dataclass(frozen=True, slots=True)
class Item:
    """A YAML node, what it is called, and where it stands."""

    node: yaml.Node
    what: str
    path: str

    @property
    def place(self) -> Place:
        return Place(self.path, self.node.start_mark.line + 1)

    @property
    def kind(self) -> str:
        return str(self.node.tag).rpartition(":")[2]

    def wrong(self, should_be: str) -> CaseError:
        value = f"{self.node.value!r}, " if isinstance(self.node, yaml.ScalarNode) else ""
        kind = KINDS.get(self.kind, f"of kind {self.kind!r}")
        return self.place.error(f"{self.what} is {value}{kind}, but must be {should_be}")

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.kind != "str":
            raise self.wrong("a text" + (" (put it in quotes)" if self.kind == "int" else ""))
        return str(self.node.value)

    def integer(self, at_least: int | None = None) -> int:
        value = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        if self.kind != "int" or not re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", value):
            raise self.wrong("a whole number")
        number = int(value)
        if at_least is not None and number < at_least:
            raise self.place.error(f"{self.what} is {number}, but must be at least {at_least}")
        return number

    def true(self) -> bool:
        if self.kind != "bool" or self.node.value.lower() not in ("true", "yes", "on"):
            raise self.wrong("true; leave it out if it need not happen")
        return True

    def boolean(self) -> bool:
        value = self.node.value.lower() if self.kind == "bool" else ""
        if value not in ("true", "false"):
            raise self.wrong("true or false")
        return bool(value == "true")

    def choice(self, choices: Iterable[str]) -> str:
        value = self.text()
        if value not in choices:
            raise self.place.error(f"unknown {self.what} {value!r}; choose from {', '.join(choices)}")
        return value

    def items(self, each: str) -> list[Item]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong("a list")
        return [Item(node, each, self.path) for node in self.node.value]

    def entries(self) -> list[Item]:
        """As `items`, but at least one."""
        if isinstance(self.node, yaml.SequenceNode) and not self.node.value:
            raise self.place.error(f"{self.what} is an empty list, but must hold at least one item")
        return self.items(f"an item of {self.what}")

    def pairs(self) -> dict[str, Item]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong("a mapping")
        found: dict[str, Item] = {}
        for key_node, value in self.node.value:
            key = Item(key_node, f"a key of {self.what}", self.path)
            name = key.text()
            if name in found:
                first = found[name].place.line
                raise key.place.error(f"key {name!r} is twice in {self.what}, first in line {first}")
            found[name] = Item(value, name, self.path)
        return found

    def mapping(self, known: Sequence[str], required: Sequence[str] = ()) -> dict[str, Item]:
        found = self.pairs()
        for name, item in found.items():
            if name not in known:
                raise item.place.error(
                    f"unknown key {name!r} in {self.what}; known are {', '.join(known)}"
                )
        for name in required:
            if name not in found:
                raise self.place.error(f"{self.what} lacks the key {name!r}")
        return found


def yaml_files(directory: Path, what: str) -> list[Path]:
    """In order, one `what` each; at least one. Raises `CaseError`."""
    for path in sorted(directory.glob("*.yml")):
        message = f"a {what} must end in .yaml, or it would be overlooked"
        raise Place(shown_path(path), 1).error(message)
    paths = sorted(directory.glob("*.yaml"))
    if not paths:
        raise Place(shown_path(directory), 1).error(f"there is no {what} (*.yaml) here")
    return paths


def read_yaml(path: Path, what: str, content: str) -> Item:
    """The root of a file, called `what`, that must hold `content`. Raises `CaseError`."""
    shown = shown_path(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(shown, mark.line + 1 if mark else 1)
        raise place.error(f"this is no valid YAML: {error.problem or error.context}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        problem = str(error).splitlines()[0]
        raise Place(shown, 1).error(f"this file cannot be read as YAML: {problem}") from None
    if root is None:
        raise Place(shown, 1).error(f"the file is empty, but must hold {content}")
    return Item(root, what, shown)


def shown_path(path: Path) -> str:
    """As short as a person would type it."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Encoded by the model; an empty text is an empty prompt, whatever a tokenizer would add."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ids as they are, also unknown ones."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomPrompt:
    """Pseudo-random known ids, the same in every run."""

    length: int
    seed: int


@dataclass(frozen=True, slots=True)
class ContextPrompt:
    """Pseudo-random ids, `offset` longer than the context (so usually negative)."""

    offset: int
    seed: int


Prompt = TextPrompt | TokenPrompt | RandomPrompt | ContextPrompt


@dataclass(frozen=True, slots=True)
class ContextCap:
    """A cap that ends `offset` tokens behind the context."""

    offset: int


@dataclass(frozen=True, slots=True)
class EosRef:
    """A token of the right answer ("ref"), of the prompt, or of the prompt and not of the answer
    ("prompt-only"). `index` None: the answer's last, at the cap."""

    source: str
    index: int | None

    def __str__(self) -> str:
        return f"{self.source}[{'last' if self.index is None else self.index}]"


@dataclass(frozen=True, slots=True)
class RequestExpectation:
    """What one request must come to; None or nothing: whatever the oracle says."""

    finish: FinishReason | None = None
    num_tokens: int | None = None
    error_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request, perhaps symbolic."""

    place: Place
    request_id: str
    prompt: Prompt
    cap: int | ContextCap
    eos: tuple[int | EosRef, ...] = ()
    arrive: int | None = None
    aborts: tuple[int, ...] = ()
    expect: RequestExpectation = RequestExpectation()

    @property
    def is_bad(self) -> bool:
        return self.expect.finish is FinishReason.ERROR


@dataclass(frozen=True, slots=True)
class CaseExpectation:
    """Events that must show in the trace, or the case has proved nothing."""

    preemption: bool = False
    chunked: bool = False
    slot_reuse: bool = False
    mixed_step: bool = False
    prefix_hit: bool = False
    max_steps: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == CaseExpectation()


Call = tuple[RequestSpec, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One workload worth keeping, and the bug it remembers."""

    place: Place
    name: str
    promise: Promise
    why: str
    calls: tuple[Call, ...]
    link: str | None = None
    declared_needs: tuple[Capability, ...] = ()
    models: tuple[str, ...] = ()  # empty: all
    config: EngineConfig = EngineConfig()
    abort_unknown: tuple[tuple[str, int], ...] = ()  # ids that no request has, step before which
    expect: CaseExpectation = CaseExpectation()

    @property
    def requests(self) -> Call:
        """All of them, call after call."""
        return tuple(spec for call in self.calls for spec in call)

    @property
    def needs_stepping(self) -> bool:
        return bool(self.abort_unknown) or any(
            spec.arrive is not None or spec.aborts for spec in self.requests
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities: the declared ones, and those that arrivals, aborts and expectations imply."""
        implied = {
            Capability.STEPPING: self.needs_stepping,
            Capability.TRACING: not self.expect.is_empty,
            Capability.PREEMPTION: self.expect.preemption,
            Capability.CHUNKED_PREFILL: self.expect.chunked,
            Capability.SCHEDULING: self.expect.mixed_step,
            Capability.PREFIX_CACHING: self.expect.prefix_hit,
        }
        return tuple(c.value for c in Capability if c in self.declared_needs or implied.get(c, False))
