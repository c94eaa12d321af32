"""Hypothesis strategies: requests whose text must follow a grammar.

A grammar is drawn small and its alphabet narrow, so that its state decides at nearly every token; or
wide enough that the model's own choice, and so a right draft, is often allowed. EOS ids are bytes that
stand in no text.
"""

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from batchproof.api import EngineConfig, Grammar, Request
from batchproof.decoding.grammar import TakenGrammars
from batchproof.generators.sharing import block_prompts
from batchproof.generators.speculating import AGREEMENTS, MOST_DRAFTS
from batchproof.generators.strategies import text_tokens
from batchproof.generators.target import Target
from batchproof.workload.workloads import Workload

ENDS = (*range(8), *range(0xF8, 0x100))  # bytes of no UTF-8 text but control characters
WIDE = "[ -~]"
CLASSES = ("[0-9]", "[a-f]", "[A-Z]", "[xyz_]", "[0-9a-f]")
WORDS = ("a", "ab", "no", "xyz", "0", "42", "=>", "(?)")
SPECIAL = ".^$*+?{}[]\\|()"
NAMES = ("id", "name", "ok", "n", "tags")
MALFORMED = {
    "unclosed group": Grammar("regex", "a(b"),
    "unclosed quote": Grammar("ebnf", 'root ::= "a'),
    "missing rule": Grammar("ebnf", 'root ::= "a" tail'),
    "half a schema": Grammar("json_schema", '{"type":'),
    "unknown type": Grammar("json_schema", '{"type":"word"}'),
    "unknown kind": Grammar("yaml", "a: 1"),
}


def _escaped(word: str) -> str:
    return "".join(f"\\{each}" if each in SPECIAL else each for each in word)


TIMES = ("?", "*", "+", "{2}", "{1,3}")


def larger(
    parts: st.SearchStrategy[str], times: Sequence[str] = TIMES, longest: int = 3
) -> st.SearchStrategy[str]:
    """Draws regular expressions of such parts: up to `longest` in a row, a choice, or one repeated."""
    return st.one_of(
        st.lists(parts, min_size=2, max_size=longest).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda ways: f"({'|'.join(ways)})"),
        st.tuples(parts, st.sampled_from(times)).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


LEAVES = st.sampled_from([*map(_escaped, WORDS), *CLASSES, WIDE])
PARTS = st.one_of(LEAVES, larger(LEAVES))
regexes = st.one_of(PARTS, larger(PARTS)).map(lambda text: Grammar("regex", text))


@st.composite
def ebnfs(draw: st.DrawFn) -> Grammar:
    """Draws rules that are nested without bound, lists, or words that begin alike. Each place knows by
    its next character which rule goes on."""
    some, other = draw(st.permutations(CLASSES[:3]))[:2]
    opening, closing = draw(st.sampled_from([("(", ")"), ("[", "]"), ("{", "}"), ("<", ">")]))
    deep = f'root ::= {some} | "{opening}" root "{closing}" root?'
    row = f'root ::= item ("," item)* end?\nitem ::= {some} {other}? | "{opening}" root "{closing}"'
    named = f'root ::= {some}+ ":" tail\ntail ::= {other} tail | "{closing}"'
    return Grammar("ebnf", draw(st.sampled_from([deep, f'{row}\nend ::= ";" | "!"', named])))


Schema = dict[str, Any]
LEAF_SCHEMAS: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("boolean", "null", "integer")]),
    st.just({"type": "string", "pattern": "^[a-f]{1,3}$"}),
    st.sets(st.sampled_from(["red", "rose", "blue", 7, 70]), min_size=1).map(
        lambda values: {"enum": sorted(values, key=str)}
    ),
)


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 2}


def _object(parts: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": parts, "required": [*parts], "additionalProperties": False}


def _nested(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    objects = st.dictionaries(st.sampled_from(NAMES), parts, min_size=1, max_size=2).map(_object)
    return st.one_of(parts.map(_array), objects)


schemas = st.recursive(LEAF_SCHEMAS, _nested, max_leaves=3).map(
    lambda schema: Grammar("json_schema", json.dumps(schema))
)
OF_KIND: Mapping[str, st.SearchStrategy[Grammar]] = {
    "regex": regexes,
    "ebnf": ebnfs(),
    "json_schema": schemas,
}


def grammars(taken: TakenGrammars) -> st.SearchStrategy[Grammar]:
    """Draws grammars that an engine takes."""
    return st.one_of(*(drawn for kind, drawn in OF_KIND.items() if kind in taken.kinds))


def lasting(num_tokens: int) -> st.SearchStrategy[Grammar]:
    """Draws grammars whose texts have at least so many tokens."""
    leaves = st.tuples(LEAVES, LEAVES, LEAVES)
    return leaves.map(lambda of: Grammar("regex", f"({of[0]}({of[1]}|{of[2]})?){{{num_tokens}}}"))


# Allows much of what the model says in ASCII; a token that is lost or doubled changes what comes next.
FREE = Grammar("regex", f"({WIDE}[!-Z])*")


@st.composite
def ends(draw: st.DrawFn, target: Target) -> frozenset[int]:
    """Draws the EOS ids of a request with a grammar, beside which may stand one that is unknown."""
    if target.grammars.ends is not None:
        return target.grammars.ends
    some = draw(st.sets(st.sampled_from(ENDS), min_size=1, max_size=3), label="eos")
    return frozenset(some | draw(st.sampled_from([set(), {target.subject.vocab_size}])))


@st.composite
def structured(
    draw: st.DrawFn, target: Target, workload: Workload, some: st.SearchStrategy[Grammar] | None = None
) -> Workload:
    """Draws which requests have a grammar, one of `some`: the first for certain. The others stay as
    they are."""
    some = grammars(target.grammars) if some is None else some
    found: list[Request] = []
    for request in workload.requests:
        grammar = draw(some if not found else st.one_of(st.none(), some), label="grammar")
        eos = draw(ends(target)) if grammar else request.eos_token_ids
        found.append(replace(request, grammar=grammar, eos_token_ids=eos))
    return workload.with_requests(found)


@st.composite
def drafted(draw: st.DrawFn, target: Target, workload: Workload) -> Workload:
    """Draws grammars for the workload, and drafts that know none of them: of a model that is right
    about the plain answers always, sometimes or never, or of n-grams. Three more answers are nearly
    free, so that some drafts are allowed, right ones among them."""
    vocab_size = target.subject.vocab_size
    agreement = draw(st.sampled_from([0.75, *AGREEMENTS, None, 0.0, 1.0]), label="draft_agreement")
    num = draw(st.sampled_from([3, *range(1, MOST_DRAFTS + 1)]), label="num_speculative_tokens")
    eos = draw(ends(target))
    free = [
        Request(f"free-{text}", text_tokens(text, vocab_size)[:4], 16, eos, grammar=FREE)
        for text in range(3)
    ]
    bounded = draw(structured(target, workload))
    config = workload.config
    return Workload(
        (*free, *bounded.requests),
        replace(
            config,
            max_num_seqs=max(2, config.max_num_seqs),
            max_num_batched_tokens=max(64, config.max_num_batched_tokens),
            max_model_len=None,
            num_blocks=None,
            num_speculative_tokens=num,
            draft_agreement=agreement,
        ),
    )


@st.composite
def same_prompts(draw: st.DrawFn, target: Target) -> tuple[Workload, ...]:
    """Draws calls to one engine with a prefix cache: prompts that share whole blocks, each under one
    grammar after the other and under none, at once and from call to call."""
    block_size = draw(st.sampled_from(target.block_sizes), label="block_size")
    prompt = (*draw(block_prompts(target.subject.vocab_size, block_size), label="prompt"), 7)
    config = EngineConfig(max_num_seqs=2, block_size=block_size, prefix_caching=True)
    some = [*draw(st.lists(grammars(target.grammars), min_size=2, max_size=3), label="grammars"), None]
    eos = draw(ends(target))
    asked = [Request(f"r{i}", prompt, 2 * block_size, eos, grammar=each) for i, each in enumerate(some)]
    return tuple(Workload(tuple(each), config) for each in (asked[:1], asked[::-1], asked))


def to_the_end(target: Target) -> Workload:
    """Returns requests whose texts end in every way: at once, by an EOS that is forced or is one of
    many, one token before the cap, at the cap, and not at all."""
    vocab_size, taken = target.subject.vocab_size, target.grammars
    word = string.ascii_lowercase[:9]
    schema = _object({"id": {"enum": [12345]}, "tags": _array({"type": "boolean"})})
    other = _array({"enum": ["red", "rose"]})
    ways = {
        "at once": (Grammar("regex", ""), 3),
        "or at once": (Grammar("regex", "([ -~][0-9])*"), 9),
        "forced": (Grammar("regex", word), 20),
        "at the cap": (Grammar("regex", word), len(word) + 1),
        "whole at the cap": (Grammar("regex", word), len(word)),
        "cut": (Grammar("regex", word), len(word) - 1),
        "never": (Grammar("regex", "[a-f]*-"), 12),
        "deep": (Grammar("ebnf", 'root ::= "(" root ")" | [0-9]'), 16),
        "schema": (Grammar("json_schema", json.dumps(schema)), 60),
        "other schema": (Grammar("json_schema", json.dumps(other)), 30),
    }
    prompts = [text_tokens(text, vocab_size)[: 3 + text] for text in range(len(ways))]
    wanted = [
        Request(name, prompt, cap, taken.ends or frozenset({2, 0xFA}), grammar=grammar)
        for prompt, (name, (grammar, cap)) in zip(prompts, ways.items(), strict=True)
        if grammar.kind in taken.kinds
    ]
    plain = Request("plain", prompts[-1], 9)
    return Workload((*wanted, plain), EngineConfig(max_num_seqs=4))
