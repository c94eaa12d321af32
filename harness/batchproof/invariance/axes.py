"""The axes: what is varied between the base and the changed setting.

Each axis makes comparisons with seeded contents and kept prompts of different lengths. All settings use
`generate` but on `interruption`, one thread but on `threads`, and no EOS that a token may be, so that
every request runs to its cap. The kept request has neighbours in all of them but the base of `batch`.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from batchproof.api import Capability, EngineConfig, Grammar, Request, SamplingParams
from batchproof.errors import UsageError
from batchproof.invariance.grades import Grade
from batchproof.invariance.shown import (
    KEPT,
    Shown,
    has_larger_batch,
    hits,
    in_changed_alone,
    is_chunked,
    is_preempted,
    is_prefilled,
    joins,
    returns,
    shares_steps,
    verifies,
)
from batchproof.models.catalogue import ModelUnderTest
from batchproof.workload.workloads import (
    CLEAR,
    PAUSE,
    RESUME,
    SLEEP,
    UPDATE,
    WAKE,
    Interruption,
    Workload,
)

NEIGHBOUR = "neighbour"  # the ids of the requests whose contents do not matter begin with it

CAP = 8  # new tokens of the kept request
LENGTHS = (31, 7, 18, 25, 12, 29, 9, 21)  # tokens of its prompt in each comparison
NEIGHBOUR_LENGTHS = (12, 3, 25, 8, 17)  # tokens, in turn
LONGEST = max(*LENGTHS, *NEIGHBOUR_LENGTHS) + 2 * CAP
MAX_NUM_SEQS = 17  # the largest batch: 16 others
BATCH_SIZES = (16, 2, 8, 4)  # others beside the kept request, in turn
NUMS_EARLIER = (0, 3, 8)  # requests that an engine has served before, in turn
SMALL_BUDGET = 6  # tokens a step, for chunks
SMALL_BLOCK = 4  # tokens
NUM_DRAFTS = 3  # tokens a step and sequence
# No text of it ends within a cap, so no EOS is allowed.
LASTING, ENDS = Grammar("regex", f"[ -~]{{{4 * CAP}}}"), frozenset({2})
# What is done with an engine while it answers, before which step. Tokens come in between.
DONE = ((2, PAUSE), (3, RESUME), (4, SLEEP), (5, WAKE), (6, CLEAR), (7, UPDATE))


@dataclass(frozen=True)
class Setting:
    """Calls to one fresh engine. The answers of the requests named `KEPT...` are joined in order."""

    calls: tuple[Workload, ...]
    num_threads: int = 1

    @property
    def kept(self) -> Request:
        """The kept request, of several the first."""
        requests = (request for call in self.calls for request in call.requests)
        return next(each for each in requests if each.request_id.startswith(KEPT))


# The base setting, and the changed one, which may need the tokens that the base answered.
Comparison = tuple[Setting, Setting | Callable[[tuple[int, ...]], Setting]]


class Contents:
    """Seeded prompts for one model; the same seed gives the same prompts."""

    def __init__(self, subject: ModelUnderTest, seed: int) -> None:
        """Raises `UsageError` if the model's context is too short for the workloads."""
        if subject.context_len < LONGEST:
            raise UsageError(
                f"model {subject.name!r} has a context of {subject.context_len} tokens, but must hold "
                f"at least {LONGEST} to be measured"
            )
        self.subject = subject
        self._rng = random.Random(seed)
        self._alphabet = subject.alphabet

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(self._alphabet, k=length))

    def kept(self, length: int) -> Request:
        return Request(KEPT, self.prompt(length), CAP)

    def neighbours(self, count: int, cap: int = CAP) -> list[Request]:
        lengths = [NEIGHBOUR_LENGTHS[i % len(NEIGHBOUR_LENGTHS)] for i in range(count)]
        return [
            Request(f"{NEIGHBOUR}-{i}", self.prompt(length), cap) for i, length in enumerate(lengths)
        ]

    def rewritten(self, setting: Setting) -> Setting:
        """Returns the setting with other contents of all neighbours, of the same shapes. A neighbour
        that is in several calls gets the same new prompt in each."""
        fresh: dict[tuple[int, ...], tuple[int, ...]] = {}

        def changed(request: Request) -> Request:
            old = request.prompt_token_ids
            if not request.request_id.startswith(NEIGHBOUR):
                return request
            return replace(request, prompt_token_ids=fresh.setdefault(old, self._other(old)))

        calls = tuple(call.with_requests([*map(changed, call.requests)]) for call in setting.calls)
        return replace(setting, calls=calls)

    def _other(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        shift = self._rng.randrange(1, len(self._alphabet))
        place = {token: index for index, token in enumerate(self._alphabet)}
        return tuple(self._alphabet[(place[token] + shift) % len(place)] for token in prompt)

    def with_last_token_changed(self, request: Request) -> Request:
        *start, last = request.prompt_token_ids
        return replace(request, prompt_token_ids=(*start, *self._other((last,))))


def one_call(requests: Sequence[Request], **config: object) -> Setting:
    return Setting((call(requests, **config),))


def call(requests: Sequence[Request], **config: object) -> Workload:
    """Returns one call of `generate`, with these fields of the config. Logits are asked for."""
    limits = EngineConfig(max_num_seqs=MAX_NUM_SEQS, return_logits=True)
    return Workload(tuple(requests), limits).with_config(**config)


Compare = Callable[[Contents, Request], Comparison]  # of one kept request


@dataclass(frozen=True)
class Axis:
    """One thing that should not matter. `shown` is None where the harness itself makes it happen."""

    name: str
    what: str  # the changed setting against the base, in words
    compare: Compare
    shown: Shown | None = None
    needs: Capability | None = None
    keeps_shapes: bool = False  # so that S is its best grade
    is_in_process: bool = False  # the harness varies its own process, so the engine must be in it
    stride: int = 1  # 2: of the lengths of the kept prompt every second

    @property
    def best(self) -> Grade:
        return Grade.SAME_SHAPES if self.keeps_shapes else Grade.BITWISE

    def lack(self, subject: ModelUnderTest) -> str:
        """Returns what the model has not that the axis needs; an empty text if it has all."""
        if self.needs is Capability.ADAPTERS and not subject.num_variants:
            return "the model has no adapters"
        if self.needs is Capability.STRUCTURED and not subject.has_texts:
            return "the texts of the model's tokens are unknown"
        return ""

    def comparisons(self, contents: Contents) -> Iterator[Comparison]:
        for length in LENGTHS[:: self.stride]:
            yield self.compare(contents, contents.kept(length))


AXES: dict[str, Axis] = {}  # by name, in the order of the tables


def axis(
    name: str, what: str, shown: Shown | None = None, needs: Capability | None = None, **others: Any
) -> Callable[[Compare], Compare]:
    """Adds what the function compares to `AXES`; the arguments are the fields of `Axis`."""

    def added(compare: Compare) -> Compare:
        AXES[name] = Axis(name, what, compare, shown, needs, **others)
        return compare

    return added


PREFIXES = Capability.PREFIX_CACHING


def _in_turn(values: Sequence[int], kept: Request) -> int:
    # One of the values, by the length of the prompt.
    return values[LENGTHS.index(len(kept.prompt_token_ids)) % len(values)]


@axis("batch", "among 2, 4, 8 or 16 others", has_larger_batch)
def batch_size(contents: Contents, kept: Request) -> Comparison:
    return one_call([kept]), _among_others(contents, kept)


@axis("neighbours", "others' contents rewritten, all shapes kept", shares_steps, keeps_shapes=True)
def neighbours(contents: Contents, kept: Request) -> Comparison:
    base = _among_others(contents, kept)
    return base, contents.rewritten(base)


def _among_others(contents: Contents, kept: Request) -> Setting:
    first, *others = contents.neighbours(_in_turn(BATCH_SIZES, kept))
    return one_call([first, kept, *others])


@axis("order", "the batch reversed", shares_steps)
def order(contents: Contents, kept: Request) -> Comparison:
    # The kept request is first, and then last.
    batch = [kept, *contents.neighbours(5)]
    return one_call(batch), one_call(batch[::-1])


@axis("arrival", "joins running decodes", in_changed_alone(joins))
def arrival(contents: Contents, kept: Request) -> Comparison:
    # Requests that start together, and the same with the kept one queued behind a short one,
    # so that it joins the decodes of the others when that has finished.
    running = contents.neighbours(2, cap=2 * kept.max_new_tokens)
    short = Request(f"{NEIGHBOUR}-short", contents.prompt(5), 2)
    base = one_call([*running, kept], max_num_seqs=3)
    return base, one_call([*running, short, kept], max_num_seqs=3)


@axis(
    *("chunking", f"at most {SMALL_BUDGET} tokens a step"),
    *(in_changed_alone(is_chunked), Capability.CHUNKED_PREFILL),
)
def chunking(contents: Contents, kept: Request) -> Comparison:
    batch = [kept, *contents.neighbours(2)]
    base = one_call(batch, max_num_seqs=3)
    return base, one_call(batch, max_num_seqs=3, max_num_batched_tokens=SMALL_BUDGET)


@axis("prefix", "the same prompt was served before", in_changed_alone(hits), PREFIXES)
def prefix_hit(contents: Contents, kept: Request) -> Comparison:
    # A cold prefix cache, and one that an earlier call with the same prompt has filled.
    limits = {"prefix_caching": True, "block_size": SMALL_BLOCK}
    again = call([kept, *contents.neighbours(2)], **limits)
    earlier = call([replace(kept, request_id="earlier")], **limits)
    return Setting((again,)), Setting((earlier, again))


@axis("offload", "served before, its blocks given away since", in_changed_alone(returns), PREFIXES)
def offload_hit(contents: Contents, kept: Request) -> Comparison:
    # A cold prefix cache, and one whose blocks a crowd has taken since: what comes back was elsewhere.
    batch = [kept, *contents.neighbours(2)]
    pool = sum(_num_blocks(len(r.prompt_token_ids) + r.max_new_tokens) for r in batch)
    limits = {"prefix_caching": True, "block_size": SMALL_BLOCK, "num_blocks": pool}
    crowd = [
        Request(f"{NEIGHBOUR}-{i}", contents.prompt(len(each.prompt_token_ids)), 2 * CAP)
        for i, each in enumerate(batch)
    ]
    again, earlier = call(batch, **limits), call([replace(kept, request_id="earlier")], **limits)
    return Setting((again,)), Setting((earlier, call(crowd, **limits), again))


@axis("prefill", "decoded tokens fed as a prompt", is_prefilled)
def prefill_against_decode(contents: Contents, kept: Request) -> Comparison:
    # An answer of decodes, and prompts extended by its tokens, each for one token more.
    others = contents.neighbours(2)

    def extended(token_ids: tuple[int, ...]) -> Setting:
        prompts = [(*kept.prompt_token_ids, *token_ids[:step]) for step in range(len(token_ids))]
        requests = [Request(f"{KEPT}-{step}", each, 1) for step, each in enumerate(prompts)]
        return Setting(tuple(call([each, *others]) for each in requests))

    return one_call([kept, *others]), extended


@axis(
    *("preemption", "too few blocks for all at once"),
    *(in_changed_alone(is_preempted), Capability.PREEMPTION),
)
def preemption(contents: Contents, kept: Request) -> Comparison:
    # As many blocks as it takes, and too few for three at once: the last, kept, gives way.
    batch = [*contents.neighbours(2, cap=16), kept]
    blocks = [_num_blocks(len(r.prompt_token_ids) + 1) for r in batch]
    largest = max(_num_blocks(len(r.prompt_token_ids) + r.max_new_tokens) for r in batch)
    pool = max(sum(blocks) + 1, largest)
    base = one_call(batch, block_size=SMALL_BLOCK)
    return base, one_call(batch, block_size=SMALL_BLOCK, num_blocks=pool)


def _num_blocks(num_tokens: int) -> int:
    return ceil(num_tokens / SMALL_BLOCK)


@axis(
    *("speculation", f"up to {NUM_DRAFTS} drafts a step"),
    *(in_changed_alone(verifies), Capability.SPECULATION),
)
def speculation(contents: Contents, kept: Request) -> Comparison:
    # Half of the drafts are right.
    batch = [kept, *contents.neighbours(2)]
    drafts = {"num_speculative_tokens": NUM_DRAFTS, "draft_agreement": 0.5}
    return one_call(batch), one_call(batch, **drafts)


@axis("adapters", "others name adapters", shares_steps, Capability.ADAPTERS)
def adapters(contents: Contents, kept: Request) -> Comparison:
    # All adapters are loaded in both settings. The kept request names none, or in turn one of its own.
    loaded = tuple((f"adapter-{i}", i) for i in range(1, min(contents.subject.num_variants, 4) + 1))
    own, *others = [None, *dict(loaded)][_in_turn((0, 1), kept) :]
    plain = contents.neighbours(5)
    named = [replace(each, adapter=others[i % len(others)]) for i, each in enumerate(plain)]
    kept = replace(kept, adapter=own)
    calls = (call([kept, *batch], max_loras=len(loaded)) for batch in (plain, named))
    base, changed = (Setting((replace(each, adapters=loaded),)) for each in calls)
    return base, changed


@axis(
    *("grammars", "others follow a grammar, all shapes kept"),
    *(shares_steps, Capability.STRUCTURED),
    keeps_shapes=True,
)
def grammars(contents: Contents, kept: Request) -> Comparison:
    plain = contents.neighbours(5)
    bound = [replace(each, grammar=LASTING, eos_token_ids=ENDS) for each in plain]
    return one_call([kept, *plain]), one_call([kept, *bound])


@axis("interruption", "paused, asleep, cleared, weights anew meanwhile", needs=Capability.INTERRUPTION)
def interruption(contents: Contents, kept: Request) -> Comparison:
    # What an engine can of it, in the middle of the answer. Logprobs of all tokens stand for logits,
    # which no step returns.
    asked = SamplingParams(logprobs=contents.subject.vocab_size)
    kept = replace(kept, max_new_tokens=2 * CAP, sampling=asked)
    batch = [kept, *contents.neighbours(2, cap=2 * CAP)]
    stepped = replace(call(batch), arrivals=(0,) * len(batch))
    done = tuple(Interruption(step, kind) for step, kind in DONE)
    return Setting((stepped,)), Setting((replace(stepped, interruptions=done),))


@axis("restart", "a fresh engine, all shapes kept", keeps_shapes=True)
def restart(contents: Contents, kept: Request) -> Comparison:
    # A fresh engine and a second one, or one that has served others and a fresh one.
    again = call([kept, *contents.neighbours(3)])
    earlier = call(contents.neighbours(_in_turn(NUMS_EARLIER, kept)))
    return Setting((earlier, again) if earlier.requests else (again,)), Setting((again,))


@axis("threads", "two threads of torch", is_in_process=True, stride=2)
def threads(contents: Contents, kept: Request) -> Comparison:
    # A prefill and a decode only, since two threads that wait for busy cores are some fifty times
    # as slow.
    short = replace(kept, max_new_tokens=2)
    base = one_call([short, *contents.neighbours(8, cap=2)])
    return base, replace(base, num_threads=2)
