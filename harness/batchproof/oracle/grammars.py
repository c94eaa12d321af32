"""Which tokens a grammar allows: an automaton of the suite's own, which shares nothing with an engine.

Each kind of grammar becomes rules of one form: a symbol is a set of bytes or the name of a rule, and a
rule is a list of sequences of symbols. A state is the set of all stacks of symbols that may still come,
each with a set of bytes on top. It reads what the suite's generators write: ASCII, no left recursion,
of a JSON schema the keywords of `_regex`, which make it a regular expression.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar

from batchproof.decoding.grammar import Grammar

Symbol = frozenset[int] | str  # bytes of which one comes, or the name of a rule
Symbols = tuple[Symbol, ...]
State = frozenset[Symbols]
BYTES = tuple(bytes([value]) for value in range(256))
NUMBER = "-?(0|[1-9][0-9]*)"


@cache
def automaton(grammar: Grammar, spelling: tuple[bytes, ...] = BYTES) -> "Automaton":
    """Returns the automaton of a grammar. `spelling[n]` is the text of token n; a token without text
    never comes. Raises `ValueError` for a grammar that is malformed, or not of the suite's kind."""
    rules = Rules()
    match grammar.kind:
        case "regex":
            rules.named["root"] = [Reader(grammar.text, rules).read()]
        case "ebnf":
            _read_ebnf(grammar.text, rules)
        case "json_schema":
            rules.named["root"] = [Reader(_regex(json.loads(grammar.text)), rules).read()]
        case _:
            raise ValueError(f"{grammar.kind!r} is no kind of grammar")
    return Automaton(rules.productive(), spelling)


@dataclass
class Automaton:
    """Follows the tokens of an answer."""

    rules: dict[str, list[Symbols]]
    spelling: tuple[bytes, ...]
    _after: dict[tuple[State, int], State] = field(default_factory=dict)
    _allowed: dict[State, frozenset[int]] = field(default_factory=dict)

    nowhere: ClassVar[State] = frozenset()  # behind what no text of the grammar begins with

    @cached_property
    def start(self) -> State:
        """The state before the first token."""
        return self._opened({("root",)})

    @cached_property
    def letters(self) -> frozenset[int]:
        """The bytes that its rules name."""
        symbols = (each for ways in self.rules.values() for way in ways for each in way)
        return frozenset().union(*(each for each in symbols if not isinstance(each, str)))

    def behind(self, state: State, token: int) -> State:
        """Returns the state behind a token that is allowed."""
        for byte in self.spelling[token]:
            state = self._after_byte(state, byte)
        return state

    def allowed(self, state: State) -> frozenset[int]:
        """Returns the tokens that may come next."""
        if state not in self._allowed:
            tops = frozenset[int]().union(*(stack[0] for stack in state if stack))
            words = enumerate(self.spelling)
            tokens = (n for n, word in words if word and word[0] in tops and self._takes(state, word))
            self._allowed[state] = frozenset(tokens)
        return self._allowed[state]

    def may_end(self, state: State) -> bool:
        """Returns whether the text is whole."""
        return () in state

    def _after_byte(self, state: State, byte: int) -> State:
        key = (state, byte)
        if key not in self._after:
            left = {stack[1:] for stack in state if stack and byte in stack[0]}
            self._after[key] = self._opened(left)
        return self._after[key]

    def _takes(self, state: State, word: bytes) -> bool:
        for byte in word:
            state = self._after_byte(state, byte)
        return bool(state)

    def _opened(self, stacks: set[Symbols]) -> State:
        """Returns the stacks with the rules on top replaced by what they stand for."""
        todo, seen = list(stacks), set(stacks)
        while todo:
            stack = todo.pop()
            if stack and isinstance(stack[0], str):
                found = {(*body, *stack[1:]) for body in self.rules.get(stack[0], ())} - seen
                todo += found
                seen |= found
        return frozenset(each for each in seen if not each or not isinstance(each[0], str))


class Rules:
    """Rules by name, while they are made."""

    def __init__(self) -> None:
        self.named: dict[str, list[Symbols]] = {}

    def choice(self, ways: list[Symbols]) -> Symbols:
        """Returns what stands for one of these sequences."""
        if len(ways) == 1:
            return ways[0]
        name = f" {len(self.named)}"  # which no rule of a grammar is called
        self.named[name] = ways
        return (name,)

    def repeated(self, symbols: Symbols, low: int, high: int | None) -> Symbols:
        """Returns what stands for `low` to `high` times these symbols; None: any number."""
        if high is not None:
            more: Symbols = ()
            for _ in range(high - low):
                more = self.choice([(), (*symbols, *more)])
            return symbols * low + more
        name = f" {len(self.named)}"
        self.named[name] = [(), (*symbols, name)]
        return (*symbols * low, name)

    def productive(self) -> dict[str, list[Symbols]]:
        """Returns the rules without sequences that no text can be made of. Raises `ValueError` if there
        is no text at all, and for a rule without a name."""
        used = {s for ways in self.named.values() for way in ways for s in way if isinstance(s, str)}
        if missing := sorted(used - self.named.keys()):
            raise ValueError(f"rule {missing[0]!r} is missing")
        good = set[str]()

        def is_good(way: Symbols) -> bool:
            return all(s in good if isinstance(s, str) else bool(s) for s in way)

        while more := {n for n, ways in self.named.items() if any(map(is_good, ways))} - good:
            good |= more
        if "root" not in good:
            raise ValueError("no text is in the grammar")
        return {name: [way for way in ways if is_good(way)] for name, ways in self.named.items()}


def text(characters: str) -> Symbols:
    """Returns what stands for these characters. Raises `ValueError` unless they are ASCII."""
    return tuple(frozenset({byte}) for byte in characters.encode("ascii"))


class Reader:
    """Reads one regular expression: characters, `\\` before one, classes, groups, `|`, `?`, `*`, `+`
    and `{m,n}`."""

    def __init__(self, given: str, rules: Rules) -> None:
        self.given, self.rules, self.at = given, rules, 0

    @property
    def next(self) -> str:
        return self.given[self.at : self.at + 1]

    def read(self) -> Symbols:
        found = self.ways()
        if self.next:
            raise ValueError(f"{self.given!r} has {self.next!r} at {self.at}")
        return found

    def take(self, expected: str = "") -> str:
        taken = self.next
        if not taken or (expected and taken != expected):
            raise ValueError(f"{self.given!r} has {taken!r} at {self.at}, not {expected or 'more'}")
        self.at += 1
        return taken

    def skip(self) -> None:
        """Passes what stands between symbols: nothing."""

    def ways(self) -> Symbols:
        ways = [self.sequence()]
        while self.next == "|":
            self.take()
            ways.append(self.sequence())
        return self.rules.choice(ways)

    def sequence(self) -> Symbols:
        found: Symbols = ()
        self.skip()
        while self.next and self.next not in "|)":
            found += self.times(self.one())
            self.skip()
        return found

    def times(self, symbols: Symbols) -> Symbols:
        bounds: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
        if self.next in bounds and self.next:
            return self.rules.repeated(symbols, *bounds[self.take()])
        if self.next == "{":
            end = self.given.index("}", self.at)
            low, comma, high = self.given[self.at + 1 : end].partition(",")
            self.at = end + 1
            most = int(high) if high else None if comma else int(low)
            return self.rules.repeated(symbols, int(low), most)
        return symbols

    def one(self) -> Symbols:
        if self.next == "(":
            self.take()
            found = self.ways()
            self.take(")")
            return found
        return (self.some(),) if self.next == "[" else self.word()

    def word(self) -> Symbols:
        if self.next in "?*+{}.^$]":
            raise ValueError(f"{self.given!r} has {self.next!r} at {self.at}")
        return text(self.character())

    def character(self) -> str:
        taken = self.take()
        if taken == "\\":
            taken = self.take()
            if taken.isalnum():
                raise ValueError(f"{self.given!r} has \\{taken}")
        return taken

    def some(self) -> frozenset[int]:
        """Reads a class such as [a-f0-9]."""
        self.take("[")
        found = set[int]()
        while self.next != "]" or not found:
            first = last = self.character()
            if self.next == "-" and self.given[self.at + 1 : self.at + 2] != "]":
                self.take()
                last = self.character()
            found |= {*range(ord(first), ord(last) + 1)}
        self.take("]")
        return frozenset(found)


class EbnfReader(Reader):
    """Reads the right side of a rule: as a regular expression, but characters stand in quotes, words
    are names of rules, and spaces do not count."""

    def skip(self) -> None:
        while self.next == " ":
            self.at += 1

    def word(self) -> Symbols:
        name = ""
        while self.next.isalnum():
            name += self.take()
        if name:
            return (name,)
        self.take('"')
        found: Symbols = ()
        while self.next != '"':
            found += text(self.character())
        self.take('"')
        return found


def _read_ebnf(given: str, rules: Rules) -> None:
    """Reads a rule from each line. Two rules beside each other never share a name that is made up."""
    for line in filter(None, map(str.strip, given.splitlines())):
        name, sign, right = line.partition("::=")
        if not sign:
            raise ValueError(f"{line!r} is no rule")
        rules.named[name.strip()] = [EbnfReader(right, rules).read()]


def _regex(schema: dict[str, Any]) -> str:
    """Returns the regular expression of the JSON of a schema. Raises `ValueError` for a keyword beyond
    these."""
    match schema:
        case {"enum": [*values]} if len(schema) == 1:
            return f"({'|'.join(map(_quoted, values))})"
        case {"type": "boolean" | "null" as kind} if len(schema) == 1:
            return {"boolean": "(true|false)", "null": "null"}[kind]
        case {"type": "integer"} if len(schema) == 1:
            return NUMBER
        case {"type": "string", "pattern": str(pattern)} if len(schema) == 2:
            return f'"({pattern.removeprefix("^").removesuffix("$")})"'
        case {"type": "array", "items": items, "minItems": low, "maxItems": high} if len(schema) == 4:
            one = _regex(items)
            some = f"{one}(,{one}){{{max(low, 1) - 1},{high - 1}}}"
            return rf"\[({some}{'' if low else '|'})\]"
        case {"type": "object", "properties": parts, "required": needed, "additionalProperties": False}:
            if len(schema) == 4 and needed == [*parts]:
                pairs = (f"{_quoted(name)}:{_regex(part)}" for name, part in parts.items())
                return rf"\{{{','.join(pairs)}\}}"
    raise ValueError(f"{_compact(schema)} is beyond the suite's schemas")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _quoted(value: object) -> str:
    """Returns the regular expression of the JSON of a value."""
    return re.escape(_compact(value))
