"""Grammars of requests, followed by llguidance: which tokens may come next in an answer.

An engine has the capability only where the library is installed. The text of token n is byte n.
"""

from collections.abc import Sequence as Seq
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Capability, Grammar, Request

llguidance: Any = import_module("llguidance") if find_spec("llguidance") else None
LACKING = frozenset[Capability]() if llguidance else frozenset({Capability.STRUCTURED})
FORMATS = {"regex": "regex", "ebnf": "gbnf", "json_schema": "json_schema"}  # llguidance's names


class _Spelling:
    """A tokenizer of bytes as llguidance takes it; an end of its own stands behind the vocabulary."""

    bos_token_id = None

    def __init__(self, vocab_size: int) -> None:
        self.tokens = [bytes([n]) if n < 256 else b"" for n in range(vocab_size)] + [b""]
        self.eos_token_id = vocab_size
        self.special_token_ids = [vocab_size]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class Matcher:
    """Follows one answer. It may be asked about any beginning of it, in any order: what it has read and
    the beginning lacks, such as rejected drafts, is rolled back."""

    def __init__(self, compiled: Any, request: Request, vocab_size: int) -> None:
        self.compiled = compiled
        self.vocab_size = vocab_size
        self.read: list[int] = []
        self.eos = [token for token in request.eos_token_ids if 0 <= token < vocab_size]

    def allowed(self, output_token_ids: Seq[int]) -> Tensor:
        """Returns which tokens may come behind these, bool (vocab,): none behind an EOS, nor behind
        what no text of the grammar begins with."""
        nothing = torch.zeros(self.vocab_size, dtype=torch.bool)
        if not self.follow(output_token_ids):
            return nothing
        bits = torch.frombuffer(bytearray(self.compiled.compute_bitmask()), dtype=torch.uint8)
        places = torch.arange(8, dtype=torch.uint8)
        allowed = (bits[:, None] >> places & 1).bool().flatten()[: self.vocab_size]
        allowed[self.eos] = bool(self.compiled.is_accepting())
        return allowed

    def follow(self, token_ids: Seq[int]) -> bool:
        """Goes to the state behind these tokens; returns whether there is one."""
        num = next(
            (i for i, (a, b) in enumerate(zip(self.read, token_ids, strict=False)) if a != b), None
        )
        num = min(len(self.read), len(token_ids)) if num is None else num
        self.roll_back(len(self.read) - num)
        new = list(token_ids[num:])
        if not set(new).isdisjoint(self.eos) or self.compiled.validate_tokens(new) < len(new):
            return False
        self.compiled.consume_tokens(new)
        self.read += new
        return True

    def roll_back(self, num_tokens: int) -> None:
        if num_tokens:
            self.compiled.rollback(num_tokens)
            del self.read[-num_tokens:]


class Grammars:
    """Compiles the grammars of an engine's requests."""

    matcher_class = Matcher

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        if llguidance is not None:
            wrapped = llguidance.TokenizerWrapper(_Spelling(vocab_size))
            self._tokenizer = llguidance.LLTokenizer(wrapped, slices=[])

    def refusal(self, request: Request) -> str | None:
        """Returns why the request's grammar cannot be followed; None if it can, or there is none."""
        if request.grammar is None:
            return None
        if llguidance is None:
            return f"a {request.grammar.kind} grammar is given, but llguidance is not installed"
        try:
            matcher = self.matcher(request)
        except ValueError as error:
            return f"the {request.grammar.kind} grammar {request.grammar.text!r} is malformed: {error}"
        if matcher is None or not bool(matcher.allowed(()).any()):
            return f"no text is in the {request.grammar.kind} grammar {request.grammar.text!r}"
        return None

    def matcher(self, request: Request) -> Matcher | None:
        """Returns what follows the request's grammar; None if it has none. Raises `ValueError` for one
        that is malformed."""
        if request.grammar is None:
            return None
        return self.matcher_class(self.compiled(request.grammar), request, self.vocab_size)

    def compiled(self, grammar: Grammar) -> Any:
        """Returns llguidance's matcher at the beginning of a text. Raises `ValueError`."""
        if grammar.kind == "json_schema":
            options = {"whitespace_flexible": False}
            written = llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)
        else:
            written = llguidance.grammar_from(FORMATS[grammar.kind], grammar.text)
        made = llguidance.LLMatcher(self._tokenizer, written, log_level=0)
        if made.is_error():
            raise ValueError(made.get_error().partition("\n")[0])
        return made
