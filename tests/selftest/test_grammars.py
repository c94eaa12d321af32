"""The oracle's automaton of a grammar against Python's `re`, by brute force, and against a stranger,
llguidance."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchproof.api import Grammar, Request
from batchproof.decoding.grammar import TakenGrammars
from batchproof.generators.structuring import ENDS, MALFORMED, grammars, larger
from batchproof.oracle.choosing import is_malformed
from batchproof.oracle.grammars import Automaton, automaton
from batchproof_engines.grammars import Grammars

VOCAB_SIZE = 256


LEAVES = st.sampled_from(["a", "b", "[ab]", "ab", ""])
TIMES = ("?", "*", "+", "{1,2}", "{0,2}", "{1,}")
# Deeper ones, and longer ones, take Python's `re` ages.
small = larger(st.one_of(LEAVES, larger(LEAVES, TIMES, 2)), TIMES, 2)


def _state(known: Automaton, text: str) -> frozenset[object]:
    state = known.start
    for byte in text.encode():
        state = known.behind(state, byte) if byte in known.allowed(state) else known.nowhere
    return state


@given(regex=small)
@settings(max_examples=150)
def test_a_regular_expression_matches_as_in_python(regex: str) -> None:
    known = automaton(Grammar("regex", regex))
    texts = ["".join(each) for length in range(11) for each in product("ab", repeat=length)]
    whole = {text for text in texts if re.fullmatch(regex, text)}
    begun = {text[:length] for text in whole for length in range(len(text) + 1)}
    for text in texts[:7]:  # of up to 2 letters, which those of 10 continue
        state = _state(known, text)
        assert known.may_end(state) == (text in whole)
        assert {chr(each) for each in known.allowed(state)} == {x for x in "ab" if text + x in begun}


@given(grammar=grammars(TakenGrammars()), data=st.data())
@settings(max_examples=200)
def test_a_grammar_allows_what_a_library_allows(grammar: Grammar, data: st.DataObject) -> None:
    """Walks at random, with a step back into another branch at each token."""
    pytest.importorskip("llguidance")
    eos = frozenset(data.draw(st.sets(st.sampled_from(ENDS), min_size=1)))
    known, library = automaton(grammar), Grammars(VOCAB_SIZE)
    matcher = library.matcher(Request("r", (1,), 1, eos, grammar=grammar))
    assert matcher is not None
    state, text = known.start, list[int]()
    for _ in range(12):
        allowed = known.allowed(state)
        ends = eos if known.may_end(state) else frozenset()
        assert {*matcher.allowed(text).nonzero()[:, 0].tolist()} == allowed | ends
        if not allowed:
            break
        token, other = data.draw(st.tuples(*[st.sampled_from(sorted(allowed))] * 2))
        matcher.allowed([*text, other])
        state = known.behind(state, token)
        text.append(token)


def test_tokens_may_be_longer_than_a_byte() -> None:
    spelling = (b"", b"a", b"ab", b"b", b"bb", b"ba")
    known = automaton(Grammar("regex", "ab{2,3}"), spelling)
    assert known.allowed(known.start) == {1, 2}
    behind = known.behind(known.start, 2)
    assert known.allowed(behind) == {3, 4}
    assert known.may_end(known.behind(behind, 3))


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_grammar_is_told(kind: str) -> None:
    request = Request("r", (1,), 1, frozenset({2}), grammar=MALFORMED[kind])
    assert is_malformed(request)
    pytest.importorskip("llguidance")
    wrong = MALFORMED[kind].refusal(has_end=True) or Grammars(VOCAB_SIZE).refusal(request)
    assert wrong is not None
