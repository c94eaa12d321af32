"""Which tokens a grammar allows: an automaton of the suite's own, which shares nothing with an engine.

Each kind of grammar becomes rules of one form: a symbol is a set of bytes or the name of a rule, and a
rule is a list of sequences of symbols. A state is the set of all stacks of symbols that may still come,
each with a set of bytes on top. It reads what the suite's generators write: ASCII, no left recursion,
of a JSON schema the keywords of `_regex`. A schema, and the right side of a rule of EBNF, is made a
regular expression, which Python's own parser takes apart.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from re import _parser  # type: ignore[attr-defined] # the trees that Hypothesis reads, too
from typing import Any, ClassVar

from batchproof.decoding.grammar import Grammar

Symbol = frozenset[int] | str  # bytes of which one comes, or the name of a rule
Symbols = tuple[Symbol, ...]
State = frozenset[Symbols]
BYTES = tuple(bytes([value]) for value in range(256))
NUMBER = "-?(0|[1-9][0-9]*)"
LAST_ASCII = 127
NO_NAMES: Mapping[int, str] = {}
CHARACTER = re.compile(r"\\?.")
CLASS = r"\[]?(?:\\.|[^]\\])*]"
# Characters, `\` before one, classes, groups, `|`, `?`, `*`, `+` and `{m,n}`.
FORM = re.compile(rf"(?:\\[\W_]|{CLASS}|{{\d+(?:,\d*)?}}|\((?!\?)|[^][{{}}.^$\\(])*")
# In EBNF characters stand in quotes, words are names of rules, and spaces do not count.
EBNF_PART = re.compile(
    rf'"(?P<text>(?:\\.|[^"\\])*)"|(?P<name>[^\W_]+)|(?P<same>{CLASS}|{{[\d,]*}}|[|?*+()])| '
)


@cache
def automaton(grammar: Grammar, spelling: tuple[bytes, ...] = BYTES) -> "Automaton":
    """Returns the automaton of a grammar. `spelling[n]` is the text of token n; a token without text
    never comes. Raises `ValueError` for a grammar that is malformed, or not of the suite's kind."""
    rules = Rules()
    match grammar.kind:
        case "regex":
            rules.named["root"] = [_read(grammar.text, rules)]
        case "ebnf":
            _read_ebnf(grammar.text, rules)
        case "json_schema":
            rules.named["root"] = [_read(_regex(json.loads(grammar.text)), rules)]
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


def _read(given: str, rules: Rules, names: Mapping[int, str] = NO_NAMES) -> Symbols:
    """Returns what stands for a regular expression. `names` are the rules that some of its characters
    stand for. Raises `ValueError` for one that is malformed, or beyond `FORM` and ASCII."""
    if not FORM.fullmatch(given):
        raise ValueError(f"{given!r} is beyond the suite's regular expressions")
    try:
        return _symbols(_parser.parse(given), rules, names)
    except re.error as error:
        raise ValueError(f"{given!r} is malformed: {error}") from None


def _symbols(tree: Iterable[tuple[Any, Any]], rules: Rules, names: Mapping[int, str]) -> Symbols:
    """Returns what stands for a tree of Python's own parser. Raises `ValueError`."""
    found: Symbols = ()
    for kind, value in tree:
        match str(kind), value:
            case "LITERAL", code if code in names:
                found += (names[code],)
            case "LITERAL", _:
                found += (_some([(kind, value)]),)
            case "IN", items:
                found += (_some(items),)
            case "BRANCH", (_, ways):
                found += rules.choice([_symbols(way, rules, names) for way in ways])
            case "SUBPATTERN", (*_, inner):
                found += _symbols(inner, rules, names)
            case "MAX_REPEAT", (low, high, inner):
                most = None if high == _parser.MAXREPEAT else int(high)
                found += rules.repeated(_symbols(inner, rules, names), low, most)
            case _:
                raise ValueError(f"{kind} is beyond the suite's regular expressions")
    return found


def _some(items: Iterable[tuple[Any, Any]]) -> frozenset[int]:
    """Returns the bytes of a class such as [a-f0-9]. Raises `ValueError` unless they are ASCII."""
    found = set[int]()
    for kind, value in items:
        low, high = value if str(kind) == "RANGE" else (value, value)
        if str(kind) not in ("LITERAL", "RANGE") or high > LAST_ASCII:
            raise ValueError(f"{kind} of {value} is beyond the suite's regular expressions")
        found |= {*range(low, high + 1)}
    return frozenset(found)


def _escaped(part: re.Match[str]) -> str:
    return part[0] if part[0][1:] else re.escape(part[0])


def _read_ebnf(given: str, rules: Rules) -> None:
    """Reads a rule from each line, of which the right side becomes a regular expression: names of rules
    become characters beyond ASCII, and what is in quotes a group. Raises `ValueError`."""
    codes: dict[str, int] = {}

    def of_regex(part: re.Match[str]) -> str:
        if part["name"]:
            return f"({chr(codes.setdefault(part['name'], LAST_ASCII + 1 + len(codes)))})"
        if part["text"] is not None:
            return f"({CHARACTER.sub(_escaped, part['text'])})"
        return part["same"] or ""

    for line in filter(None, map(str.strip, given.splitlines())):
        name, sign, right = line.partition("::=")
        if not sign or not line.isascii() or EBNF_PART.sub("", right):
            raise ValueError(f"{line!r} is no rule")
        regex = EBNF_PART.sub(of_regex, right)
        names = {code: each for each, code in codes.items()}
        rules.named[name.strip()] = [_read(regex, rules, names)]


def _regex(schema: dict[str, Any]) -> str:
    """Returns the regular expression of a schema's JSON. Raises `ValueError` for other keywords."""
    match schema:
        case {"enum": [_, *_] as values} if len(schema) == 1:
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
