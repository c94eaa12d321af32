"""Mistakes about where an answer ends: whose EOS ids, stop sequence or cap, and where they are looked
for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from batchproof.api import FinishReason
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.oracle.choosing import is_drawn, sampling_of


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends an answer. `seen`: the lengths at which EOS and stop sequences are looked for, None:
    all; `before`: the tokens in front that a stop sequence may begin in."""

    eos: frozenset[int]
    stops: tuple[tuple[int, ...], ...]
    least: int
    cap: int
    seen: frozenset[int] | None = None
    before: tuple[int, ...] = ()

    def end_of(self, tokens: tuple[int, ...]) -> tuple[float, FinishReason]:
        """Returns the length and the finish reason; infinite if these tokens do not end it."""
        for num in range(1, len(tokens) + 1):
            sofar = self.before + tokens[:num]
            is_stopped = num >= self.least and any(sofar[-len(each) :] == each for each in self.stops)
            is_seen = self.seen is None or num in self.seen
            if is_seen and (is_stopped or tokens[num - 1] in self.eos):
                return num, FinishReason.STOP
            if num >= self.cap:
                return num, FinishReason.LENGTH
        return inf, FinishReason.LENGTH


def end_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; the one place is the end."""
    tokens = tuple(own.completion.token_ids)
    got = len(tokens), own.completion.finish_reason
    for mistake, ending in _endings(own):
        is_given = ending.end_of(tokens) == got
        yield Hypothesis(mistake, frozenset() if is_given else frozenset({"end"}))
    right, end = next(_endings(own))[1], "end"
    if got == (right.cap, FinishReason.LENGTH) and tokens[-1] in right.eos:
        yield Hypothesis("an EOS exactly at the cap is reported as the cap", frozenset())
    for num in {1, *map(len, right.stops)} if got[1] is FinishReason.STOP else ():
        behind = _continued(own, len(tokens) + num)
        is_cut = right.end_of(behind) == (len(tokens) + num, FinishReason.STOP)
        mistake = "what ends the answer is left out of it"
        yield Hypothesis(mistake, frozenset() if is_cut else frozenset({end}))
    if got == (right.cap, FinishReason.STOP):
        behind = _continued(own, len(tokens) + 4)[len(tokens) :]
        is_behind = not right.eos.isdisjoint(behind)
        yield Hypothesis(
            "an EOS behind the cap ends it", frozenset() if is_behind else frozenset({end})
        )


def _continued(own: Answer, num: int) -> tuple[int, ...]:
    """Returns so many right tokens, or as many as the context holds; none if they are drawn."""
    if is_drawn(own.request):
        return ()
    most = own.oracle.subject.context_len - own.num_prompt
    plain = replace(own.request, max_new_tokens=min(num, most))
    return own.oracle.choices(plain)


def _endings(own: Answer) -> Iterator[tuple[str, Ending]]:
    request, asked = own.request, sampling_of(own.request)
    right = Ending(
        request.eos_token_ids, asked.stop_token_sequences, asked.min_tokens, request.max_new_tokens
    )
    eos, stops, cap, none = right.eos, right.stops, right.cap, frozenset[int]()
    yield "", right
    yield "the cap is one too high", replace(right, cap=cap + 1)
    yield "the cap is one too low", replace(right, cap=cap - 1)
    yield "the cap counts the prompt", replace(right, cap=cap - own.num_prompt)
    yield "its EOS ids are not looked for", replace(right, eos=none)
    yield "its stop sequences are not looked for", replace(right, stops=())
    everywhere = range(2, len(own.completion.token_ids) + 1)
    yield "the first token is not compared with EOS ids", replace(right, seen=frozenset(everywhere))
    firsts = [each.first for each in own.outputs]
    lasts = frozenset({*firsts, len(own.completion.token_ids)})
    if own.calls[own.call].workload.config.num_speculative_tokens:
        yield "only the last token of a step is looked at", replace(right, seen=lasts)
        whole = min([n for n in lasts if n >= cap] or [cap])
        yield "the cap is looked at behind a whole step", replace(right, cap=whole)
    yield "a stop sequence may begin in the prompt", replace(right, before=request.prompt_token_ids)
    if eos & {*request.prompt_token_ids}:
        yield "an EOS in the prompt ends it", replace(right, cap=1, eos=frozenset(own.tokens[:1]))
    yield (
        "only stop sequences of one token are seen",
        replace(right, stops=tuple(s for s in stops if len(s) == 1)),
    )
    yield "only the first stop sequence is seen", replace(right, stops=stops[:1])
    yield "min_tokens does not hold back stop sequences", replace(right, least=0)
    yield "min_tokens counts the prompt", replace(right, least=right.least - own.num_prompt)
    yield "min_tokens is one too low", replace(right, least=right.least - 1)
    yield "min_tokens is one too high", replace(right, least=right.least + 1)
    for num in {each.num_resumed for each in own.outputs}:
        yield "the cap is counted anew behind a preemption", replace(right, cap=cap + num)
        seen = frozenset(n for n in everywhere if n > num)
        yield "EOS and stop sequences are not looked for before a preemption", replace(right, seen=seen)
    every = [each.request.max_new_tokens for each in own.peers if each.call == own.call]
    yield "the longest cap of the call is taken for all", replace(right, cap=max(every))
    yield "the shortest cap of the call is taken for all", replace(right, cap=min(every))
    for other in own.others:
        its, whose = other.request, repr(other.request.request_id)
        yield f"it is ended by the EOS ids of {whose}", replace(right, eos=eos | its.eos_token_ids)
        yield f"the EOS ids are those of {whose}", replace(right, eos=its.eos_token_ids)
        its_stops = sampling_of(its).stop_token_sequences
        yield f"it is ended by a stop sequence of {whose}", replace(right, stops=stops + its_stops)
        yield f"the stop sequences are those of {whose}", replace(right, stops=its_stops)
        yield f"the cap is that of {whose}", replace(right, cap=its.max_new_tokens)
        late = replace(right, cap=its.max_new_tokens + 1)
        yield f"the cap is that of {whose}, and is met a token late", late
        yield f"min_tokens is that of {whose}", replace(right, least=sampling_of(its).min_tokens)
