"""The dimensions of a workload in which features meet: what each of their values does to it.

A dimension knows nothing of the others: any combination is a good workload, since the oracle has the
right answer to each request under all limits. What cannot meet is in `covering`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from batchproof.api import Grammar, Request, SamplingParams
from batchproof.generators.choosing import STRONG
from batchproof.generators.strategies import half_of, text_tokens
from batchproof.oracle.choosing import is_drawn, sampling_of
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.validation.yaml_nodes import package_yaml
from batchproof.workload.workloads import CLEAR, PAUSE, RESUME, SLEEP, UPDATE, WAKE, Interruption

NUM_REQUESTS = 4
# The first asks for nothing; the next two may share a prefix. It is the oldest, so those that ask are
# preempted.
OLDEST, OWNER, SHARER, LAST = range(NUM_REQUESTS)
NAMES = tuple(f"r{place}" for place in range(NUM_REQUESTS))
ASKING, ENDING = (OWNER, SHARER, LAST), (SHARER, LAST)
LASTING = (OLDEST, OWNER)  # they outgrow a small pool even if the others end at once
LONGER_CAP = 24  # for an answer that is to repeat itself
NUM_TEXTS = 12  # of which one is looked for whose answer repeats itself
BEHIND = 3  # tokens of an answer that are looked at behind its cap
LARGEST_DRAFT = 5
ADAPTERS = (("a", 1), ("b", 2))  # names, and the numbers of the adapters that they stand for
# Texts that are longer than any answer, and state that decides each token; EOS ids that stand in none.
GRAMMARS = {
    "narrow text": ("([a-c][0-9]|xyz){30}", "[0-9]{3}(,[0-9]{3}){30}"),
    "wide text": ("([ -~]{3}[0-9]?){30}", "[ -~]{60}"),
}
TEXTS = tuple(GRAMMARS)
OUTSIDE = frozenset({2, 0xFA})
ALL_FIELDS = frozenset(SamplingParams.__slots__)
SAID_BY_ALL = frozenset(b"ab35,yz")  # of these, each text may go on with one, wherever it is


@dataclass
class Plan:
    """A workload in the making: each dimension adds its value, in the order of `DIMENSIONS`."""

    oracle: Oracle
    rng: random.Random
    block_size: int
    fields: AbstractSet[str] = ALL_FIELDS  # of `SamplingParams`, that the engine takes
    max_num_seqs: int = NUM_REQUESTS
    budget: int | None = None  # tokens of a step
    requests: list[Request] = field(default_factory=list)
    limits: dict[str, object] = field(default_factory=dict)
    arrivals: tuple[int, ...] | None = None
    aborts: tuple[tuple[str, int], ...] = ()
    adapters: tuple[tuple[str, int], ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    has_turn: bool = False

    @property
    def vocab_size(self) -> int:
        return self.oracle.subject.vocab_size

    def text(self, number: int, length: int) -> tuple[int, ...]:
        return text_tokens(number, self.vocab_size)[:length]

    def change(self, place: int, **changes: object) -> None:
        self.requests[place] = replace(self.requests[place], **changes)  # type: ignore[arg-type]

    def choose(self, place: int, **changes: object) -> None:
        """Changes sampling parameters of one request, as far as the engine takes them."""
        asked = replace(sampling_of(self.requests[place]), **changes)  # type: ignore[arg-type]
        self.change(place, sampling=asked.within(self.fields))

    def continued(self, place: int) -> tuple[int, ...]:
        """Returns what a request would answer if nothing ended it, some tokens behind its cap too; of
        one whose tokens are drawn, what it would answer if they were not."""
        request = self.requests[place]
        longer = replace(request, max_new_tokens=request.max_new_tokens + BEHIND)
        named = self.oracle.under(self.adapters)
        return named.choices(replace(longer, sampling=None) if is_drawn(request) else longer)


def _set_slots(plan: Plan, value: str) -> None:
    plan.max_num_seqs = {"each": NUM_REQUESTS, "two": 2, "one": 1}[value]


def _set_chunks(plan: Plan, value: str) -> None:
    """Sets the budget; 3 is the least that has room for a draft beside a decode."""
    if value != "off":
        least = max(plan.max_num_seqs, 3)
        plan.budget = least if value == "least" else max(least, 2 * plan.block_size + 1)


def _set_drafts(plan: Plan, value: str) -> None:
    if value != "off":
        plan.limits["num_speculative_tokens"] = plan.rng.choice((1, 2, LARGEST_DRAFT, LARGEST_DRAFT))
        plan.limits["draft_agreement"] = {"right": 1.0, "mixed": 0.5, "wrong": 0.0}.get(value)
    if value == "n-grams":
        plan.change(OLDEST, max_new_tokens=LONGER_CAP)
        for place in (OLDEST, LAST):
            plan.change(place, prompt_token_ids=_foretold(plan, plan.requests[place]))


def _foretold(plan: Plan, request: Request) -> tuple[int, ...]:
    """Returns the request's prompt or another of its length behind what the model says to it, such that
    its answer repeats a pair of tokens: n-grams find a draft. The last one tried if none does."""
    length, cap = len(request.prompt_token_ids), request.max_new_tokens
    texts = (plan.text(number, length) for number in range(NUM_TEXTS))
    for text in (request.prompt_token_ids, *texts):
        prompt = (*text[-2:], *plan.oracle.right_tokens(text, cap)[:3], *text)
        if _repeats_a_pair((*prompt, *plan.oracle.right_tokens(prompt, cap)), len(prompt)):
            break
    return prompt


def repeats_itself(oracle: Oracle) -> bool:
    """Returns whether answers of this model can be foretold by n-grams. They cannot where each token is
    a hash of all before it."""
    plan = Plan(oracle, random.Random(0), 1)
    request = Request("probe", plan.text(0, 3), LONGER_CAP)
    prompt = _foretold(plan, request)
    return _repeats_a_pair((*prompt, *oracle.right_tokens(prompt, LONGER_CAP)), len(prompt))


def _repeats_a_pair(tokens: tuple[int, ...], start: int) -> bool:
    """Returns whether a pair that ends at `start` or behind, not last, occurred before."""
    pairs = [*pairwise(tokens)]
    return any(pairs[end - 1] in pairs[: end - 1] for end in range(start, len(tokens) - 1))


def _set_adapters(plan: Plan, value: str) -> None:
    """Lets those with one prefix name different adapters, and the last the one that is first. The
    oldest has none, so that drafts are right of it."""
    if value != "off":
        plan.adapters = ADAPTERS
        plan.limits["max_loras"] = 1 if value == "one slot" else len(ADAPTERS)
        for place, name in ((OWNER, "a"), (SHARER, "b"), (LAST, "a")):
            plan.change(place, adapter=name)


def _set_interruption(plan: Plan, value: str) -> None:
    """Comes behind an abort, which is at a step."""
    first = max((step for _, step in plan.aborts), default=0)
    step = first + plan.rng.randint(1, 2 if plan.aborts else 5)
    ways = {
        "pause": (Interruption(step, PAUSE), Interruption(step + 2, RESUME)),
        "sleep": (Interruption(step, SLEEP), Interruption(step + 2, WAKE)),
        "clear": (Interruption(step, CLEAR),),
        "new weights": (Interruption(step, UPDATE, 1),),
    }
    plan.interruptions = ways.get(value, ())


def _set_prompts(plan: Plan, value: str) -> None:
    size, rng = plan.block_size, plan.rng
    lengths = {
        "short": lambda: rng.randint(1, size),
        "edges": lambda: size * rng.randint(1, 3) + rng.choice((-1, 0, 1)),
        "long": lambda: rng.randint(3 * size + 1, 5 * size),
        "repeats": lambda: 3 * size,
    }
    for place in range(NUM_REQUESTS):
        prompt = plan.text(place + 4 * rng.randrange(3), lengths[value]())
        if place == OWNER and plan.budget is not None:  # at least one prompt is fed in parts
            prompt += plan.text(12, max(0, plan.budget + 2 - len(prompt)))
        if value == "repeats":
            prompt = (prompt[: 2 + place % 2] * len(prompt))[: len(prompt)]
        cap = rng.randint(size + 3, size + 6) + (LARGEST_DRAFT if place in LASTING else 0)
        plan.requests.append(Request(NAMES[place], prompt, cap))


def _set_prefixes(plan: Plan, value: str) -> None:
    if value == "off":
        return
    plan.limits["prefix_caching"] = True
    size = plan.block_size
    owner = (*plan.requests[OWNER].prompt_token_ids, *plan.text(13, 2 * size))
    tail = plan.text(14, plan.rng.randint(1, 2 * size))
    shared = {
        "equal": owner,
        "longer": (*owner, *tail),
        "half": (*owner[:size], *tail),
        "turn": owner,
        # Larger blocks end alike, but not blocks of two.
        "reordered": (*owner[:size], owner[size + 1], owner[size], *owner[size + 2 :]),
    }
    # It runs beside all others. With `half` two share what the third leaves within.
    oldest = (*owner[: None if value == "half" else size], *plan.requests[OLDEST].prompt_token_ids)
    plan.change(OLDEST, prompt_token_ids=oldest)
    plan.change(OWNER, prompt_token_ids=owner)
    plan.change(SHARER, prompt_token_ids=shared[value])
    plan.has_turn = value == "turn"


def _set_parameters(plan: Plan, value: str) -> None:
    """Gives three requests unlike values of the same fields; with drafts two, because what a draft is
    right about is an answer without any."""
    has_drafts = "num_speculative_tokens" in plan.limits
    low, high = sorted(plan.rng.sample(range(plan.vocab_size), 2))
    turn = plan.rng.randrange(len(ASKING))  # with drafts each cut comes in some workload
    for number, place in enumerate(ASKING):
        if place == LAST and has_drafts:
            continue
        token = plan.rng.randrange(plan.vocab_size)
        last = plan.requests[place].prompt_token_ids[-3:]  # penalties see the prompt, or do not
        some = dict.fromkeys((token, *last, *((token + 2 * n) % plan.vocab_size for n in range(12))))
        falling = tuple((each, STRONG - n) for n, each in enumerate(some))
        match value:
            case "bias":  # for one of them against its own answer
                bans = tuple((each, -STRONG) for each in sorted({*plan.continued(place)[1:]}))
                plan.choose(place, logit_bias=bans if place == SHARER else falling[: 1 + number])
            case "allowed":
                few = {plan.rng.randint(low, high) for _ in range(2)}  # they look alike
                plan.choose(place, allowed_token_ids=frozenset({low, high, *few}))
            case "repetition":
                penalty = (4.0, 0.5, 1.5)[number]
                plan.choose(place, logit_bias=falling, repetition_penalty=penalty)
            case "counts":  # drafts are right until a token comes again, or one is preferred
                rate = (2.0, -2.0, 1.5)[number]
                plan.choose(place, frequency_penalty=rate, presence_penalty=rate)
            case "penalties":  # about as strong as the steps of the bias: each count decides
                rate, other = ((2.0, -2.0), (1.5, -1.5), (2.0, -1.5))[number]
                asked = {"frequency_penalty": rate, "presence_penalty": other}
                plan.choose(place, logit_bias=falling, **asked)
            case "one token":
                cuts = (("top_k", 1), ("top_p", 1e-6), ("min_p", 1.0))
                name, least = cuts[(number + turn) % len(cuts)]
                plan.choose(place, temperature=3.0, **{name: least})
            case "drawn":
                seed = plan.rng.randrange(1 << 31)
                warm = (10.0, 20.0, 40.0)[number]  # rounding changes hardly any draw
                plan.choose(place, temperature=warm, seed=seed)


def _set_ends(plan: Plan, value: str) -> None:
    """Lets two requests end by what they answer, or would if they went on."""
    if value in TEXTS:
        _set_texts(plan, value)
        return
    for place in ENDING:
        cap, any_may_come = plan.requests[place].max_new_tokens, is_drawn(plan.requests[place])
        inside = plan.rng.randint(1, cap - 2)
        answer = plan.continued(place) if value != "cap" else ()
        if value in ("first token", "inside", "at the cap") and any_may_come:
            plan.change(place, eos_token_ids=half_of(plan.vocab_size))
            continue
        match value:
            case "first token":
                plan.change(place, eos_token_ids=frozenset({answer[0]}))
            case "inside":
                plan.change(place, eos_token_ids=frozenset({answer[inside]}))
            case "at the cap":
                plan.change(place, eos_token_ids=frozenset({answer[cap - 1]}))
            case "behind the cap":
                plan.change(place, eos_token_ids=frozenset({*answer[cap:]} - {*answer[:cap]}))
            case "stop behind the cap":
                plan.choose(place, stop_token_sequences=(answer[cap - 1 : cap + 1],))
            case "stop sequence":
                across = (plan.requests[place].prompt_token_ids[-1], answer[0])  # ends nothing
                stops = [answer[plan.rng.randint(0, inside) : inside + 2]]
                if any_may_come:
                    stops = [(each,) for each in sorted(half_of(plan.vocab_size))]
                plan.choose(place, stop_token_sequences=(across, *stops))
            case "least length":  # half of what may come ends it, or what comes when it first may
                allowed = sampling_of(plan.requests[place]).allowed_token_ids
                may_come = sorted(allowed or range(plan.vocab_size))
                least = plan.rng.randint(cap // 2, cap - 1)
                ends = {answer[least]} if place == LAST else {*may_come[1::2]}
                plan.change(place, eos_token_ids=frozenset(ends))
                plan.choose(place, min_tokens=least)


def _set_texts(plan: Plan, value: str) -> None:
    """Gives two requests unlike grammars, whose texts end behind the cap."""
    for place, text in zip(ENDING, GRAMMARS[value], strict=True):
        plan.change(place, grammar=Grammar("regex", text), eos_token_ids=OUTSIDE)
        if (allowed := sampling_of(plan.requests[place]).allowed_token_ids) is not None:
            plan.choose(place, allowed_token_ids=allowed | SAID_BY_ALL)


def _set_logprobs(plan: Plan, value: str) -> None:
    for number, place in enumerate(ASKING):
        match value:
            case "of tokens":
                plan.choose(place, logprobs=(0, 5, 1)[number])
            case "of prompts":
                # Without these for the sharer: they may keep a prompt from what is cached.
                plan.choose(place, logprobs=2, prompt_logprobs=(2, None, 1)[number])


def _set_siblings(plan: Plan, value: str) -> None:
    """Lets the last ask for what the sharer asks for, with the next seed."""
    if value == "two":
        plan.requests[LAST] = replace(plan.requests[SHARER], request_id=NAMES[LAST])
        seed = sampling_of(plan.requests[SHARER]).seed
        if seed is not None:
            plan.choose(LAST, seed=seed + 1)


def _set_pool(plan: Plan, value: str) -> None:
    """Lets the pool hold the largest request, and the prompts of those that run, which outgrow it: at
    the latest the two that last."""
    if value == "tight":
        size, can_share = plan.block_size, "prefix_caching" in plan.limits
        lengths = (len(each.prompt_token_ids) + each.max_new_tokens for each in plan.requests)
        lives = [ceil(length / size) for length in lengths]
        num_lasting = sum(lives[place] for place in LASTING) - can_share  # the first block
        admitted = [each.prompt_token_ids for each in plan.requests[: plan.max_num_seqs]]
        full = {
            (0 if can_share else place, prompt[:end])
            for place, prompt in enumerate(admitted)
            for end in range(size, len(prompt) + 1, size)
        }
        num_held = len(full) + len(admitted) + plan.rng.randint(0, 1)
        # The one that ends later holds some blocks less than its whole life when the other ends.
        plan.limits["num_blocks"] = max(*lives, min(num_held, num_lasting - 3))


def _set_arrival(plan: Plan, value: str) -> None:
    ways = {"stepped": (0, 0, 0, 0), "staggered": (0, 1, 2, 4), "late": (0, 0, 6, 9)}
    plan.arrivals = ways.get(value)


def _set_abort(plan: Plan, value: str) -> None:
    """Aborts the last request while it waits, or the owner in its prefill or soon after its first
    token; the oldest is fed before it."""
    lengths = (len(plan.requests[place].prompt_token_ids) for place in (OLDEST, OWNER))
    before, num_prefills = (ceil(length / (plan.budget or 2048)) for length in lengths)
    when = {
        "waiting": (LAST, 1),
        "prefill": (OWNER, before + plan.rng.randint(0, max(0, num_prefills - 2))),
        "decode": (OWNER, before + num_prefills + plan.rng.randint(-1, 1)),
    }
    if value != "off":
        assert plan.arrivals is not None, "an abort needs steps"
        place, step = when[value]
        plan.aborts = ((NAMES[place], plan.arrivals[place] + step),)


@dataclass(frozen=True)
class Dimension:
    """What can be varied: values by name, the plain one first, each with what it needs of an engine
    (capabilities, and fields of `SamplingParams`). `promise` is about it, if one is."""

    add: Callable[[Plan, str], None]
    values: Mapping[str, Sequence[str]]
    promise: Promise | None


SETTERS: Mapping[str, Callable[[Plan, str], None]] = {
    each.__name__.removeprefix("_set_"): each
    for each in (
        *(_set_slots, _set_chunks, _set_prompts, _set_prefixes, _set_drafts, _set_adapters),
        *(_set_parameters, _set_ends, _set_logprobs, _set_siblings, _set_pool, _set_arrival),
        *(_set_abort, _set_interruption),
    )
}
FILE = package_yaml("generators/dimensions.yaml")
DIMENSIONS: Mapping[str, Dimension] = {
    name: Dimension(
        SETTERS[name], each["values"], Promise[each["promise"]] if "promise" in each else None
    )
    for name, each in FILE["dimensions"].items()
}
PLAIN: Mapping[str, str] = {name: next(iter(each.values)) for name, each in DIMENSIONS.items()}
