"""Hypothesis strategies: requests whose tokens are chosen by parameters of their own, among others."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request, SamplingParams
from batchproof.decoding.sampling import highest
from batchproof.generators.strategies import (
    around_powers,
    cut_prompt,
    half_of,
    longest_context,
    short_requests,
    text_tokens,
    workloads,
)
from batchproof.generators.target import Target
from batchproof.oracle.choosing import sampling_of
from batchproof.oracle.distributions import flat_enough, min_p_of, top_p_of, top_p_within, two_tokens
from batchproof.workload.workloads import Workload

STRONG = 40.0  # a bias that decides, whatever the logits
KINDS = {  # of changes, and the field that each is made by
    "bias": "logit_bias",
    "ban": "logit_bias",
    "allowed": "allowed_token_ids",
    "repetition": "repetition_penalty",
    "frequency": "frequency_penalty",
    "presence": "presence_penalty",
    "min_tokens": "min_tokens",
    "stop": "stop_token_sequences",
}


def bad_parameters(vocab_size: int) -> dict[str, SamplingParams]:
    """Returns parameters that no request of up to 8 new tokens can have, by what is wrong with them."""
    return {
        "negative temperature": SamplingParams(temperature=-0.5),
        "top_p of zero": SamplingParams(temperature=1.0, top_p=0.0),
        "top_p above 1": SamplingParams(temperature=1.0, top_p=1.5),
        "min_p above 1": SamplingParams(temperature=1.0, min_p=2.0),
        "penalty of zero": SamplingParams(repetition_penalty=0.0),
        "unknown allowed token": SamplingParams(allowed_token_ids=frozenset({3, vocab_size})),
        "no token allowed": SamplingParams(allowed_token_ids=frozenset()),
        "bias of an unknown token": SamplingParams(logit_bias=((-1, 2.0),)),
        "min_tokens above the cap": SamplingParams(min_tokens=9),
        "empty stop sequence": SamplingParams(stop_token_sequences=((),)),
    }


@st.composite
def processed(draw: st.DrawFn, target: Target, request: Request) -> Request:
    """Draws one or two changes of the logits, which make another answer of the request's plain one, or
    end it elsewhere."""
    vocab_size, fields, cap = target.subject.vocab_size, target.fields, request.max_new_tokens
    answer = target.oracle.right_tokens(request.prompt_token_ids, cap)
    token = st.integers(0, vocab_size - 1)
    changes: dict[str, object] = {}
    eos = request.eos_token_ids
    kinds = [kind for kind, field in KINDS.items() if field in fields]
    for kind in draw(st.sets(st.sampled_from(kinds), min_size=1, max_size=2)):
        match kind:
            case "bias":
                tokens = draw(st.lists(token, min_size=1, max_size=3, unique=True))
                halves = [(tokens[0], STRONG / 2)]  # of a token named twice the biases add up
                others = [(t, STRONG - i) for i, t in enumerate(tokens)][1:]
                changes["logit_bias"] = (*halves, *others, *halves)
            case "ban":
                changes["logit_bias"] = tuple((t, -STRONG) for t in sorted({*answer}))
            case "allowed":
                allowed = draw(st.sets(token, min_size=1, max_size=4)) | {vocab_size - 1}
                changes["allowed_token_ids"] = frozenset(allowed) - eos or None
            case "repetition":
                changes["repetition_penalty"] = draw(st.sampled_from([0.5, 1.5, 4.0]))
            case "frequency" | "presence":
                changes[f"{kind}_penalty"] = draw(st.sampled_from([-2.0, 0.5, 2.0]))
            case "min_tokens":  # each EOS is the best token, and so the first that is let through
                is_biased = "logit_bias" in fields  # otherwise each is a token of the plain answer
                own = token if is_biased else st.sampled_from(answer)
                ends = draw(st.lists(own, min_size=1 + is_biased, max_size=2, unique=True))
                eos = frozenset(ends)
                changes["min_tokens"] = draw(st.integers(1, cap))
                if draw(st.booleans()):  # ids that the vocabulary lacks ban no token, such as the last
                    eos |= {-1, vocab_size}
                    ends = [*(each for each in ends if each != vocab_size - 1), vocab_size - 1]
                changes["logit_bias"] = tuple((t, STRONG - i) for i, t in enumerate(ends))
                changes.pop("allowed_token_ids", None)
            case "stop":
                is_early = draw(st.booleans())  # before min_tokens
                first = 0 if is_early else draw(st.integers(0, cap - 1))
                stop = answer[first : first + draw(st.integers(1, 2))]
                across = (request.prompt_token_ids[-1], answer[0])  # a prompt's end ends no answer
                last = draw(st.sampled_from([(), (answer[-1:],)]))
                changes["stop_token_sequences"] = (stop, *last, across)
                if is_early:
                    changes.setdefault("min_tokens", cap)
    asked = SamplingParams(**changes).within(fields)  # type: ignore[arg-type]
    return replace(request, eos_token_ids=eos, sampling=asked)


def deciding_among_the_prompt(target: Target) -> Workload:
    """Returns requests whose answers depend on tokens of long prompts: on whether each is seen, and on
    where the prompt ends. Their parameters are of these fields."""
    wanted: list[Request] = []
    for text in range(4):
        prompt = text_tokens(text, target.subject.vocab_size)[:30]
        answer = target.oracle.right_tokens(prompt, 6)
        seen = {prompt[0], prompt[-1]}
        unseen = sorted({*range(target.subject.vocab_size)} - {*prompt})[:: 1 + 40 * text][:2]
        few = frozenset(seen.union(unseen))
        ways = [
            SamplingParams(allowed_token_ids=few, repetition_penalty=r, frequency_penalty=f)
            for r in (0.5, 1.5, 4.0)
            for f in (0.0, 2.0)  # behind the other: their order decides
        ]
        stops = ((prompt[-1], answer[0]), answer[2:4])
        for each in (stops, (answer[:1], answer[1:4])):
            ways.append(SamplingParams(stop_token_sequences=each))
        wanted += (
            Request(f"r{text}-{place}", prompt, 6, sampling=each.within(target.fields))
            for place, each in enumerate(ways)
        )
    return Workload(tuple(wanted))


def for_hundreds_of_tokens(target: Target) -> Workload:
    """Returns requests whose parameters of these fields look far back: of two tokens one comes until
    its count lets the other win, beyond 128 or 256; a penalised token was seen at the beginning of a
    long prompt alone; an EOS is banned for 258 tokens."""
    vocab_size, longest = target.subject.vocab_size, longest_context(target.oracle)
    prompt = cut_prompt(vocab_size, 3, min(270, longest // 2))
    cap = min(264, longest - len(prompt))
    first, other = prompt[0], (prompt[0] + 1) % vocab_size
    far = tuple(each for each in prompt[1:] if each not in (first, other))
    short = prompt[:3]
    wanted = [
        Request(
            f"counted to {num}",
            short,
            cap,
            sampling=SamplingParams(
                allowed_token_ids=frozenset({first, other}),
                logit_bias=((first, 100.0), (other, 100.0 - num / 2)),
                frequency_penalty=0.5,
            ),
        )
        for num in (132, 258)
    ]
    asked = SamplingParams(logit_bias=((first, 40.0), (other, 30.0)), repetition_penalty=2.0)
    wanted.append(Request("far", (first, *far), cap, sampling=asked))
    asked = SamplingParams(min_tokens=min(258, cap))
    wanted.append(Request("banned", short, cap, half_of(vocab_size), asked))
    return Workload(_within(wanted, target.fields))


def with_long_lists(target: Target) -> Workload:
    """Returns requests that name many tokens in one field: an answer ends with the whole of a long stop
    sequence, or with the last of many, and the last of many tokens has the only bias that counts, or is
    the best that is allowed."""
    vocab_size = target.subject.vocab_size
    prompt = text_tokens(9, vocab_size)[:5]
    longest = min(257, longest_context(target.oracle) - len(prompt)) - 8
    answer = target.oracle.right_tokens(prompt, longest + 8)
    wanted: list[Request] = []
    for size in around_powers(3, longest):
        stop = answer[4 : 4 + size]
        missed = tuple((token,) for token in range(vocab_size) if token not in answer[:6])[: size - 1]
        biases = [(token, -1.0) for token in range(min(size, vocab_size) - 1)]
        last = (vocab_size - 1, STRONG)
        ways = {
            "length": SamplingParams(stop_token_sequences=(stop,)),
            "stops": SamplingParams(stop_token_sequences=(*missed, answer[4:6])),
            "biases": SamplingParams(logit_bias=(*biases, last)),
            "allowed": SamplingParams(
                allowed_token_ids=frozenset(range(vocab_size)[-size:]), logit_bias=(last,)
            ),
        }
        for name, asked in ways.items():
            cap = size + 6 if name == "length" else 6
            wanted.append(Request(f"{name}-{size}", prompt, cap, sampling=asked))
    return Workload(_within(wanted, target.fields), EngineConfig(max_num_seqs=len(wanted)))


def in_hundreds_of_rows(target: Target) -> Workload:
    """Returns 300 requests for as many slots, each with a bias of its own, if that is a field."""
    vocab_size = target.subject.vocab_size
    wanted = [
        replace(each, sampling=SamplingParams(logit_bias=((7 * i % vocab_size, STRONG),)))
        for i, each in enumerate(short_requests(vocab_size, 300, first=0))
    ]
    return Workload(_within(wanted, target.fields), EngineConfig(max_num_seqs=len(wanted)))


HOT = 100.0  # a temperature at which any token is drawn
_FEW = frozenset(range(64))  # none of which is far ahead, so that penalties decide
# Each leaves few tokens to choose from, or a single one.
CUTS = (
    SamplingParams(HOT, top_k=1),
    SamplingParams(HOT, top_p=1e-3),
    SamplingParams(HOT, min_p=0.99),
    SamplingParams(HOT, allowed_token_ids=frozenset(range(3))),
    SamplingParams(allowed_token_ids=_FEW, presence_penalty=2.0),
    SamplingParams(allowed_token_ids=_FEW, frequency_penalty=2.0),
    SamplingParams(allowed_token_ids=_FEW, repetition_penalty=2.0),
    SamplingParams(logit_bias=((7, STRONG),), logprobs=2),
)


def where_rows_move_up(target: Target) -> Workload:
    """Returns requests that all begin at once. Those in front choose from all tokens, and end one after
    the other; those behind choose from few and stay. Who moves to a row that became free must bring
    all of its parameters along."""
    num_leaving = 2 * len(CUTS)
    made = short_requests(target.subject.vocab_size, 2 * num_leaving, first=0)
    leaving = [
        replace(each, max_new_tokens=2 + i, sampling=SamplingParams(HOT if i % 2 else 0.0))
        for i, each in enumerate(made[:num_leaving])
    ]
    staying = [
        replace(each, max_new_tokens=num_leaving + 6, sampling=CUTS[i % len(CUTS)])
        for i, each in enumerate(made[num_leaving:])
    ]
    wanted = [replace(each, eos_token_ids=frozenset()) for each in (*leaving, *staying)]
    return Workload(_within(wanted, target.fields), EngineConfig(max_num_seqs=len(wanted)))


def _within(requests: Iterable[Request], fields: AbstractSet[str]) -> tuple[Request, ...]:
    return tuple(replace(each, sampling=sampling_of(each).within(fields)) for each in requests)


@st.composite
def drawn(draw: st.DrawFn, target: Target, request: Request) -> Request:
    """Draws how the request's tokens are drawn; often from changed logits, if the engine can."""
    if Capability.LOGIT_PROCESSING in target.capabilities and draw(st.booleans()):
        request = draw(processed(target, request))
    asked = replace(
        request.sampling or SamplingParams(),
        temperature=draw(st.sampled_from([0.3, 1.0, 100.0])),  # no finite logit is excluded
        top_k=draw(st.sampled_from([0, 1, 3])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5])),
        seed=draw(st.one_of(st.none(), st.integers(0, 2**31))),
    )
    return replace(request, sampling=asked.within(target.fields))


@st.composite
def mixed_workloads(draw: st.DrawFn, target: Target, are_drawn: bool = False) -> Workload:
    """Generates a mix of greedy requests and requests with random values of sampling parameters."""
    made, change = draw(workloads(target, min_requests=3)), drawn if are_drawn else processed
    wanted = list(made.requests)
    for place, request in enumerate(wanted):
        if draw(st.integers(0, 2)):
            wanted[place] = draw(change(target, request))
    return made.with_requests(wanted)


@st.composite
def with_logprobs(draw: st.DrawFn, target: Target, workload: Workload) -> Workload:
    """Draws which requests ask for logprobs, and of how many tokens; the last one does. Likewise for
    those of their prompts, if the engine has them."""
    numbers = st.sampled_from([None, 0, 1, 5])
    has_prompts = Capability.PROMPT_LOGPROBS in target.capabilities
    prompt_numbers = st.sampled_from([None, 0, 2] if has_prompts else [None])
    wanted = list(workload.requests)
    for place, request in enumerate(wanted):
        number = draw(numbers) if place < len(wanted) - 1 else 2
        of_prompt = draw(prompt_numbers)
        if number is not None or of_prompt is not None:
            asked = replace(sampling_of(request), logprobs=number, prompt_logprobs=of_prompt)
            wanted[place] = replace(request, sampling=asked.within(target.fields))
    return workload.with_requests(wanted)


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal requests, but for their seeds."""

    name: str
    every: int  # one for each so many numbers
    cap: int
    sampling: SamplingParams | None
    has_seeds: bool = False

    def request(self, prompt: tuple[int, ...], number: int) -> Request:
        asked = self.sampling
        if asked is not None and self.has_seeds:
            asked = replace(asked, seed=number)
        return Request(f"{self.name}-{number}", prompt, self.cap, sampling=asked)


def kinds_of_draws(target: Target, prompt: tuple[int, ...], num: int) -> list[Kind]:
    """Returns what to draw behind a prompt up to `num` times: one token, of the likeliest; one with
    other parameters and seeds; two that follow each other, which show draws that are not independent;
    and greedy ones beside them. Kinds that need fields or values that the engine does not take are
    left out."""
    oracle, fields = target.oracle, target.fields
    has_seeds = Capability.SEEDED_SAMPLING in target.capabilities
    warmest = highest(fields, "temperature")
    temperature, likeliest = flat_enough(oracle, prompt, num)
    temperature = min(temperature, warmest)
    warmer = min(2 * temperature, warmest)
    nucleus = top_p_of(oracle, prompt, warmer)
    least = min_p_of(oracle, prompt, temperature, likeliest)
    within = top_p_within(oracle, prompt, temperature, likeliest)
    kinds = [
        Kind("top-k", 1, 1, SamplingParams(temperature, top_k=likeliest)),
        Kind("top-p", 4, 1, SamplingParams(warmer, top_p=nucleus), has_seeds),
        Kind("min-p", 4, 1, SamplingParams(temperature, min_p=least)),
        Kind("top-p after min-p", 8, 1, SamplingParams(temperature, top_p=within, min_p=least)),
        Kind("top-p after top-k", 8, 1, SamplingParams(temperature, top_p=within, top_k=likeliest)),
        Kind("greedy", 32, 2, None),
    ]
    tokens, even = two_tokens(oracle, prompt, num)
    even, hot = min(even, warmest), min(100.0 * even, warmest)
    kinds += (
        Kind("pair", 2, 2, SamplingParams(even, allowed_token_ids=tokens), has_seeds),
        Kind("hot", 16, 1, SamplingParams(hot, allowed_token_ids=tokens)),
    )
    asked = [(each, each.sampling or SamplingParams()) for each in kinds]
    return [each for each, sampling in asked if sampling == sampling.within(fields)]


def interleaved(kinds: list[Kind], prompt: tuple[int, ...], numbers: range) -> Iterator[Request]:
    for number in numbers:
        yield from (kind.request(prompt, number) for kind in kinds if number % kind.every == 0)
