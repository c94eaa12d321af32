"""Hypothesis strategies: workloads in which a bug can show.

Equal rows, one wave and a large pool hide nearly everything. So: fewer slots than requests, unequal
lengths with the long row anywhere, prompts around block boundaries, identical prompts, caps of 1 and 2
beside longer ones, EOS ids picked from the right answer, and, where the engine can, budgets below a
prompt and pools that force preemption. All of it shrinks towards one short request.
"""

import random
from collections.abc import Iterable
from functools import cache
from math import ceil

from hypothesis import settings
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.target import Target
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload

NUM_TEXTS = 24
MAX_TEXT_LEN = 256
MAX_PROMPT_LEN = 40
SMALL_BLOCKS = (2, 3, 4)  # tokens: few fill several


def fewer_examples(divisor: int) -> settings:
    """Returns the mark of a test whose examples are costly, or drawn for each of its parameters."""
    return settings(max_examples=max(2, settings().max_examples // divisor))


@st.composite
def prompts(
    draw: st.DrawFn, subject: ModelUnderTest, lengths: st.SearchStrategy[int]
) -> tuple[int, ...]:
    """Draws token ids: a length, and one of `NUM_TEXTS` pseudo-random texts to take that many from.

    The content of a prompt does not matter for finding bugs as long as it does not repeat itself. Few
    texts mean that prompts share prefixes of every length, and that right answers are computed once.
    """
    text = draw(st.integers(0, NUM_TEXTS - 1))
    return text_tokens(text, subject.vocab_size)[: draw(lengths)]


@st.composite
def asking(
    draw: st.DrawFn, oracle: Oracle, name: str, caps: Iterable[int], lengths: st.SearchStrategy[int]
) -> list[Request]:
    """Draws a request for each of the caps, called by `name` and its number."""
    return [
        Request(f"{name}-{i}", draw(prompts(oracle.subject, lengths)), cap)
        for i, cap in enumerate(caps)
    ]


@cache
def text_tokens(text: int, vocab_size: int) -> tuple[int, ...]:
    """Returns the first `MAX_TEXT_LEN` tokens of a text, reproducibly. Every fourth text contains ids
    that often have a special meaning: 0, 1, 2 and the last; no id has one here."""
    rng = random.Random(text)
    tokens = [rng.randrange(vocab_size) for _ in range(MAX_TEXT_LEN)]
    if text % 4 == 3:
        tokens = [rng.choice([0, 1, 2, vocab_size - 1, token]) for token in tokens]
    return tuple(tokens)


def prompt_lens(block_size: int) -> st.SearchStrategy[int]:
    """Draws short lengths, any length, and k * block_size - 1, + 0, + 1."""
    edges = [k * block_size + d for k in range(1, MAX_PROMPT_LEN // block_size + 1) for d in (-1, 0, 1)]
    edges = sorted({edge for edge in edges if 1 <= edge <= MAX_PROMPT_LEN})
    return st.one_of(st.integers(1, 8), st.integers(1, MAX_PROMPT_LEN), st.sampled_from(edges))


CAPS = st.one_of(st.sampled_from([1, 2]), st.integers(1, 8))  # often 1 or 2


@st.composite
def requests(
    draw: st.DrawFn,
    oracle: Oracle,
    block_size: int = 4,
    min_size: int = 1,
    max_size: int = 6,
    with_eos: bool = True,
    first_cap: int = 1,
) -> tuple[Request, ...]:
    """Draws good requests with unique ids, the first of which may have `first_cap` tokens or more."""
    count = draw(st.integers(min_size, max_size))
    made: list[Request] = []
    for index in range(count):
        if made and draw(st.integers(0, 7)) == 7:
            prompt = draw(st.sampled_from(made)).prompt_token_ids  # an identical prompt
        else:
            prompt = draw(prompts(oracle.subject, prompt_lens(block_size)))
        cap = draw(CAPS) if made else max(first_cap, draw(CAPS))
        eos = draw(eos_sets(oracle, prompt, cap)) if with_eos else frozenset()
        made.append(Request(f"r{index}", prompt, cap, eos))
    return tuple(made)


@st.composite
def eos_sets(draw: st.DrawFn, oracle: Oracle, prompt: tuple[int, ...], cap: int) -> frozenset[int]:
    """Draws no EOS id, one of the right answer's own tokens (also the first and the last), or one that
    occurs in the prompt only."""
    kind = draw(st.sampled_from(["none", "none", "answer", "answer", "prompt"]))
    if kind == "answer":
        token_ids = oracle.right_tokens(prompt, cap)
        return frozenset({token_ids[draw(st.sampled_from([0, cap - 1, cap // 2]))]})
    if kind == "prompt":
        return frozenset(prompt[:1]) - set(oracle.right_tokens(prompt, cap))
    return frozenset()


@st.composite
def workloads(
    draw: st.DrawFn,
    target: Target,
    min_requests: int = 1,
    with_eos: bool = True,
    with_arrivals: bool = False,
    first_cap: int = 1,
) -> Workload:
    """Draws good requests, of which the first may have `first_cap` tokens or more, under limits this
    engine can work with, which hold every one of them, but rarely all at once; `with_arrivals` staggers
    them."""
    block_size = draw(st.sampled_from([2, 3, 4, 16]))
    drawn = requests(target.oracle, block_size, min_requests, with_eos=with_eos, first_cap=first_cap)
    wanted = draw(drawn)
    longest = max(len(request.prompt_token_ids) for request in wanted)
    largest = max(len(r.prompt_token_ids) + r.max_new_tokens for r in wanted)
    max_num_seqs = draw(st.integers(1, 4))
    smallest_budget = max_num_seqs if Capability.CHUNKED_PREFILL in target.capabilities else longest
    least = max(smallest_budget, max_num_seqs)
    # Unbounded, any, and one that leaves a single token for the longest prompt's last chunk.
    budget = draw(st.one_of(st.just(2048), st.integers(least, 64), st.just(max(least, longest - 1))))
    num_blocks = None
    if Capability.PREEMPTION in target.capabilities:
        needed = ceil(largest / block_size)
        num_blocks = draw(st.one_of(st.none(), st.integers(needed, needed + 4)))
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        block_size=block_size,
        num_blocks=num_blocks,
        # Often the longest request fills the context to its end, whatever the block size.
        max_model_len=draw(st.sampled_from([None, None, largest])),
        return_logits=target.has_logits and not with_arrivals,
    )
    arrivals = tuple(draw(st.integers(0, 12)) for _ in wanted) if with_arrivals else None
    return Workload(wanted, config, arrivals)


@st.composite
def crowded(draw: st.DrawFn, target: Target, in_chunks: bool = False) -> Workload:
    """Draws sequences that fit the pool when they are admitted and outgrow it together after some
    tokens each, so a preemption is forced. Where windows bound all layers, some live for two blocks
    alone: an engine may give back what lies behind a window.

    `in_chunks`: the token budget is below what a preempted sequence must be fed again.
    """
    block_size = draw(st.sampled_from(target.block_sizes))
    is_short = target.subject.reach is not None and draw(st.booleans(), label="is_short")
    fewest, longest, growth = 2, 3 * block_size, 3 * block_size + 1
    if is_short:
        fewest, longest, growth = 3, max(1, block_size - 1), block_size + 2
    lens = st.integers(1, 1 if in_chunks else longest)
    lengths = draw(st.lists(lens, min_size=fewest, max_size=4), label="lengths")
    wanted = tuple(
        Request(f"r{i}", draw(prompts(target.subject, st.just(length))), growth)
        for i, length in enumerate(lengths)
    )
    whole_lives = [ceil((length + growth - 1) / block_size) for length in lengths]
    # All prompts and a block each fit; all finished sequences do not; the largest alone does.
    num_blocks = max(*whole_lives, sum(length // block_size + 1 for length in lengths))
    assert num_blocks < sum(whole_lives), "otherwise no sequence is preempted"
    config = EngineConfig(
        max_num_seqs=len(lengths),
        max_num_batched_tokens=len(lengths) + draw(st.integers(0, 1)) if in_chunks else 2048,
        block_size=block_size,
        num_blocks=num_blocks,
        return_logits=target.has_logits,
    )
    return Workload(wanted, config)


@st.composite
def long_workloads(draw: st.DrawFn, target: Target) -> Workload:
    """Draws more requests than the default has slots, with prompts and caps of dozens of tokens."""
    room = min(target.subject.context_len, 160)
    lengths = draw(st.lists(st.integers(1, room - 40), min_size=7, max_size=10), label="lengths")
    wanted = tuple(
        Request(
            f"r{i}",
            draw(prompts(target.subject, st.just(length))),
            draw(st.one_of(st.integers(1, 4), st.integers(16, 32))),
        )
        for i, length in enumerate(lengths)
    )
    return Workload(wanted, EngineConfig(return_logits=target.has_logits))


LONGEST = 4096  # tokens
LAST_START = 4093  # a prime: prompts a power of two apart start differently
LONGEST_FORWARD = 256  # tokens, where right answers cost a forward pass


@cache
def _text(vocab_size: int) -> tuple[int, ...]:
    rng = random.Random("scale")
    return tuple(rng.randrange(vocab_size) for _ in range(2 * LONGEST))


def cut_prompt(vocab_size: int, start: int, length: int) -> tuple[int, ...]:
    """Returns `length` <= `LONGEST` tokens; those of different starts begin differently."""
    start %= LAST_START
    return _text(vocab_size)[start : start + length]


def short_requests(vocab_size: int, count: int, first: int, least_cap: int = 1) -> tuple[Request, ...]:
    """Returns requests number `first` and following: prompts of 1 to 13 tokens, caps of `least_cap` and
    one more in turn. For every third request, half of all tokens are an EOS."""
    eos = (half_of(vocab_size), frozenset[int](), frozenset[int]())
    return tuple(
        Request(f"r{n}", cut_prompt(vocab_size, 7 * n, 1 + 5 * n % 13), least_cap + n % 2, eos[n % 3])
        for n in range(first, first + count)
    )


def requests_of_lengths(vocab_size: int, lengths: Iterable[int]) -> tuple[Request, ...]:
    """Returns requests for 3 tokens each, with prompts of these lengths, which begin differently."""
    return tuple(
        Request(f"r{length}", cut_prompt(vocab_size, 17 * length, length), 3) for length in lengths
    )


def half_of(vocab_size: int) -> frozenset[int]:
    """Returns every other token: as EOS ids they end an answer within a few."""
    return frozenset(range(0, vocab_size, 2))


def around(limit: int) -> tuple[int, ...]:
    """Returns the sizes at which a limit shows: one less, itself, one more."""
    return (limit - 1, limit, limit + 1)


def around_powers(least: int, largest: int) -> tuple[int, ...]:
    """Returns the sizes around each power of two that lie in these bounds, ascending."""
    sizes = {size for exponent in range(largest.bit_length()) for size in around(1 << exponent)}
    return tuple(sorted(size for size in sizes if least <= size <= largest))


def longest_context(oracle: Oracle) -> int:
    """Returns how long a context may be: that of the model, unless right answers cost too much."""
    room = min(oracle.subject.context_len, LONGEST)
    return room if oracle.subject.oracle is not None else min(room, LONGEST_FORWARD)


@st.composite
def wide_workloads(draw: st.DrawFn, target: Target, widest: int) -> Workload:
    """Draws more requests than slots, of which there are 9 to `widest`: most are short, a few are long.

    Where the engine can, the token budget is below a long prompt, the pool holds half of what all
    need, and requests arrive while others run.
    """
    slots = draw(st.integers(9, widest), label="max_num_seqs")
    longest = longest_context(target.oracle) // 8
    lengths = st.one_of(*[st.integers(1, 24)] * 7, st.integers(1, longest))
    drawn = draw(st.lists(lengths, min_size=slots + 1, max_size=slots + 9), label="lengths")
    wanted = tuple(
        Request(f"r{i}", cut_prompt(target.subject.vocab_size, 13 * i, length), 2 + i % 4)
        for i, length in enumerate(drawn)
    )
    block_size = draw(st.sampled_from([1, 8, 16, 33]), label="block_size")
    needs = [ceil((length + 5) / block_size) for length in drawn]
    can = target.capabilities
    is_small = Capability.PREEMPTION in can and draw(st.booleans(), label="small pool")
    in_chunks = Capability.CHUNKED_PREFILL in can and draw(st.booleans(), label="chunks")
    config = EngineConfig(
        max_num_seqs=slots,
        max_num_batched_tokens=draw(st.integers(slots, 300)) if in_chunks else 1 << 16,
        block_size=block_size,
        num_blocks=max(*needs, sum(needs) // 2) if is_small else None,
    )
    steps = st.sampled_from([0, 0, 1, 3])
    arrivals = tuple(draw(steps) for _ in wanted) if Capability.STEPPING in can else None
    return Workload(wanted, config, arrivals)
