"""What the text of an answer must look like: part of the contract (`batchproof.api`).

A grammar decides step by step: a token is allowed if some text of the grammar begins with the answer so
far and that token. The EOS ids of the request are no text: they are allowed where the answer so far is
a whole text of the grammar, and nowhere else. The token is the best that is allowed, so an answer ends
with an EOS, or at its cap within a text.

The text of a token is the byte of that number, as long as a model has no tokenizer. Three kinds of
grammar are what most engines take:

    regex        a regular expression that the whole text matches, without anchors
    ebnf         rules `name ::= ...` of which `root` is the first, as llama.cpp's GBNF writes them
    json_schema  a JSON schema; the text is JSON without white space, its keys in the schema's order
"""

from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("regex", "ebnf", "json_schema")


class TakenGrammars(NamedTuple):
    """Which grammars an engine takes, and which EOS ids may end their texts there; None: any."""

    kinds: frozenset[str] = frozenset(KINDS)
    ends: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as it is sent to an engine. It is not validated here: refusing one that it cannot take
    is the engine's duty (promise P22)."""

    kind: str  # one of `KINDS`
    text: str

    def refusal(self, has_end: bool) -> str | None:
        """Returns why no request can have such a grammar, naming value and rule; None if it can, as far
        as that shows without reading it. `has_end`: whether the vocabulary has an EOS id of the
        request."""
        if self.kind not in KINDS:
            return f"the grammar's kind is {self.kind!r}, but must be one of {', '.join(KINDS)}"
        if not has_end:
            return "eos_token_ids is empty, or unknown, but a grammar needs an EOS id to end the text"
        return None
