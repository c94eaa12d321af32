"""Grammars of the contract in the GBNF of llama.cpp, for a vocabulary of one word a token.

A character of a text becomes the word of its token, and everything else stays as it is written. The
words of the EOS ids follow the text: none of their tokens is special to the server, so behind one of
them anything may come.

    root ::= [ab]"c"*    ->    root ::= text-root (" t002") .*
                               text-root ::= (" t097" | " t098")(" t099")*
"""

import re
from collections.abc import Iterable, Sequence

from batchproof.decoding.grammar import Grammar
from batchproof_engines.adapters.word_tokenizer import word_of

KINDS = ("regex", "ebnf")
_ESCAPED = r"\\[^a-zA-Z0-9]"
_CLASS = rf"\[(?!\^)(?P<some>(?:{_ESCAPED}|[^\\\]])+)\]"
_SIGN = r"[()|?*+]|\{\d+(?:,\d*)?\}"
_REGEX = re.compile(rf"{_CLASS}|(?P<sign>{_SIGN})|(?P<text>{_ESCAPED}|[^\\.^$])")
_EBNF = re.compile(rf'{_CLASS}|(?P<sign>{_SIGN}| )|"(?P<text>(?:{_ESCAPED}|[^"\\])*)"|(?P<name>[\w-]+)')
_CHARACTER = re.compile(r"\\?(.)")
_RANGE = re.compile(r"\\?(.)(?:-\\?(.))?")


def translated(grammar: Grammar, eos_token_ids: Iterable[int], vocab_size: int) -> str:
    """Returns the grammar in GBNF. Raises `ValueError` for another kind, without an EOS id of the
    vocabulary, and for what is no symbol of the suite's; what else is malformed is the server's to
    refuse."""
    if grammar.kind not in KINDS:
        raise ValueError(f"the grammar's kind is {grammar.kind!r}, but must be {' or '.join(KINDS)}")
    known = [each for each in sorted(eos_token_ids) if 0 <= each < vocab_size]
    if not known:
        raise ValueError("no EOS id of the vocabulary can end the grammar's text")
    ends = _one_of(known, vocab_size)
    rules = [f"root ::= text-root {ends} .*"]
    if grammar.kind == "regex":
        rules.append(f"text-root ::= {_in_words(grammar.text, _REGEX, vocab_size)}")
    for line in grammar.text.splitlines() if grammar.kind == "ebnf" else ():
        name, sign, right = line.partition("::=")
        rules.append(f"text-{name.strip()} {sign} {_in_words(right, _EBNF, vocab_size)}")
    return "\n".join(rules)


def _in_words(given: str, symbols: re.Pattern[str], vocab_size: int) -> str:
    found, at = "", 0
    while at < len(given):
        symbol = symbols.match(given, at)
        if symbol is None:
            raise ValueError(
                f"the grammar has {given[at]!r} at {at} of {given!r}, which is not read here"
            )
        at = symbol.end()
        parts = symbol.groupdict()
        if parts["some"] is not None:
            bounds = _RANGE.findall(parts["some"])
            some = {n for low, high in bounds for n in range(ord(low), ord(high or low) + 1)}
            found += _one_of(sorted(some), vocab_size)
        elif parts["text"] is not None:
            words = [_quoted(ord(each), vocab_size) for each in _CHARACTER.findall(parts["text"])]
            found += f"({' '.join(words)})"
        else:
            found += parts["sign"] or f"text-{parts['name']}"
    return found


def _one_of(tokens: Sequence[int], vocab_size: int) -> str:
    return f"({' | '.join(_quoted(each, vocab_size) for each in tokens)})"


def _quoted(token: int, vocab_size: int) -> str:
    return f'" {word_of(token, vocab_size)}"'
