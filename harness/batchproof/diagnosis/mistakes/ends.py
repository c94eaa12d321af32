"""Mistakes in an answer's end: whose EOS ids, stop sequence or cap, and where they are looked for."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from batchproof.api import FinishReason
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.diagnosis.reruns import Without
from batchproof.oracle.choosing import is_drawn, sampling_of

Tokens = tuple[int, ...]
RIGHT, WRONG = frozenset[object](), frozenset({"end"})


class Ending(NamedTuple):
    """What ends an answer."""

    eos: frozenset[int]
    stops: tuple[Tokens, ...]
    least: int  # tokens before a stop sequence
    cap: int
    unseen: frozenset[int] = frozenset()  # lengths at which EOS and stop sequences are not looked for
    before: Tokens = ()  # what a stop sequence may begin in
    begins: tuple[int, ...] = ()  # for each token the first in which one may begin that ends there
    is_kept: bool = False  # one that was seen too early ends the answer later

    def end_of(self, tokens: Tokens) -> tuple[float, FinishReason]:
        """Returns the length and the finish reason; infinite if these tokens do not end it."""
        was_there = False
        for num in range(1, len(tokens) + 1):
            first = self.begins[num - 1] if num <= len(self.begins) else 0
            sofar = self.before + tokens[first:num]
            is_there = any(sofar[-len(each) :] == each for each in self.stops)
            was_there |= is_there and self.is_kept
            is_stopped = num >= self.least and (is_there or was_there)
            if num not in self.unseen and (is_stopped or tokens[num - 1] in self.eos):
                return num, FinishReason.STOP
            if num >= self.cap:
                return num, FinishReason.LENGTH
        return inf, FinishReason.LENGTH


def end_mistakes(own: Answer) -> Iterator[Hypothesis]:
    """Yields the mistakes; the one place is the end."""
    asked, tokens = sampling_of(own.request), tuple(own.completion.token_ids)
    cap, num, reason = own.request.max_new_tokens, len(tokens), own.completion.finish_reason
    right = Ending(own.request.eos_token_ids, asked.stop_token_sequences, asked.min_tokens, cap)
    behind = _continued(own, num + 4)
    is_cut = any(right.end_of(behind) == (n, FinishReason.STOP) for n in range(num + 1, num + 5))
    is_at_cap = num == cap
    is_right, is_stop = right.end_of(tokens) == (num, reason), reason is FinishReason.STOP
    has_eos, has_more = tokens[-1] in right.eos, not right.eos.isdisjoint(behind[num:])
    at_the_end = (  # where the mistake would show, it gives a wrong answer, else the right one
        ("", is_right),
        ("an EOS exactly at the cap is reported as the cap", is_right != (is_at_cap and has_eos)),
        ("an EOS behind the cap ends it", is_right != (is_at_cap and has_more)),
        ("what ends the answer is left out of it", is_cut if is_stop else is_right),
    )
    changed = (
        (mistake, right._replace(**changes).end_of(tokens) == (num, reason))
        for mistake, changes in (*_changes(own, right), *_of_others(own, right))
    )
    for mistake, is_given in (*at_the_end, *changed):
        yield Hypothesis(mistake, RIGHT if is_given else WRONG)
    cuts = (tuple(at if n >= at else 0 for n in range(num)) for at in _preempted_at(own))
    is_cut_off = any(right._replace(begins=cut).end_of(tokens) == (num, reason) for cut in cuts)
    mistake = "a stop sequence that begins before a preemption is not seen"
    yield Hypothesis(mistake, RIGHT if is_cut_off else WRONG, needs=Without.PREEMPTIONS)


def _preempted_at(own: Answer) -> set[int]:
    """Returns the outputs before which it was preempted, or without a trace may have been."""
    call = own.calls[own.call]
    if call.trace or call.workload.config.num_blocks is None:
        return {each.num_resumed for each in own.outputs} - {0}
    return {*range(1, len(own.tokens))}


def _continued(own: Answer, num: int) -> Tokens:
    """Returns so many right tokens, or as many as the context holds; none if they are drawn."""
    most = min(num, own.oracle.subject.context_len - own.num_prompt)
    return (
        () if is_drawn(own.request) else own.oracle.choices(replace(own.request, max_new_tokens=most))
    )


def _changes(own: Answer, right: Ending) -> Iterator[tuple[str, dict[str, Any]]]:
    eos, stops, least, cap, *_ = right
    lengths = frozenset(range(1, len(own.completion.token_ids) + 1))
    lasts = {*(each.first for each in own.outputs), len(own.completion.token_ids)}
    caps = [each.request.max_new_tokens for each in own.peers if each.call == own.call]
    if eos & {*own.tokens[:least]}:
        held = {"unseen": frozenset(range(1, least + 1))}
        yield "min_tokens does not hold back every EOS id, which ends nothing then", held
    yield "the cap is one too high", {"cap": cap + 1}
    yield "the cap is one too low", {"cap": cap - 1}
    yield "the cap counts the prompt", {"cap": cap - own.num_prompt}
    yield from _too_long(own)
    yield "its EOS ids are not looked for", {"eos": frozenset()}
    yield "its stop sequences are not looked for", {"stops": ()}
    yield "the first token is not compared with EOS ids", {"unseen": {1}}
    if len(eos) > 1:
        yield "not all of its EOS ids are looked for", {"eos": eos - {*own.completion.token_ids[:-1]}}
    if own.has_drafts:
        yield "only the last token of a step is looked at", {"unseen": lengths - lasts}
        firsts = tuple(each.first for each in own.outputs)
        yield "a stop sequence that begins in an earlier step is not seen", {"begins": firsts}
        yield (
            "the cap is looked at behind a whole step",
            {"cap": min({n for n in lasts if n >= cap} | {cap})},
        )
    yield "a stop sequence may begin in the prompt", {"before": own.request.prompt_token_ids}
    if eos & {*own.request.prompt_token_ids}:
        yield "an EOS in the prompt ends it", {"eos": frozenset(own.tokens[:1])}
    yield "only stop sequences of one token are seen", {"stops": tuple(s for s in stops if len(s) == 1)}
    yield "only the first stop sequence is seen", {"stops": stops[:1]}
    yield "min_tokens does not hold back stop sequences", {"least": 0}
    yield "a stop sequence before min_tokens ends it at min_tokens", {"is_kept": True}
    yield "min_tokens counts the prompt", {"least": least - own.num_prompt}
    yield "min_tokens is one too low", {"least": least - 1}
    yield "min_tokens is one too high", {"least": least + 1}
    for num in {each.num_resumed for each in own.outputs} - {0}:
        yield "the cap is counted anew behind a preemption", {"cap": cap + num}
    records = own.calls[own.call].schedule()
    num = sum(own.request.request_id in record.preempted for record in records)
    yield "each preemption counts as a token of the cap", {"cap": cap - num}
    yield "the longest cap of the call is taken for all", {"cap": max(caps)}
    yield "the shortest cap of the call is taken for all", {"cap": min(caps)}


def _too_long(own: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields lengths and numbers of stop sequences beyond which the last ones are not seen."""
    every = [sampling_of(each.request).stop_token_sequences for each in (own, *own.peers)]
    stops = every[0]
    for length in sorted({len(each) - 1 for each in chain(*every) if len(each) > 2}):
        seen = tuple(each for each in stops if len(each) <= length)
        yield f"a stop sequence of more than {length} tokens is not seen", {"stops": seen}
    for num in sorted({len(each) - 1 for each in every if len(each) > 2}):
        yield f"only the first {num} stop sequences are seen", {"stops": stops[:num]}


def _of_others(own: Answer, right: Ending) -> Iterator[tuple[str, dict[str, Any]]]:
    for its, whose in ((other.request, repr(other.request.request_id)) for other in own.neighbours):
        asked, cap = sampling_of(its), its.max_new_tokens
        stops = asked.stop_token_sequences
        yield f"it is ended by the EOS ids of {whose}", {"eos": right.eos | its.eos_token_ids}
        yield f"the EOS ids of {whose} are looked for, not its own", {"eos": its.eos_token_ids}
        yield f"it is ended by a stop sequence of {whose}", {"stops": right.stops + stops}
        yield f"the stop sequences of {whose} are looked for, not its own", {"stops": stops}
        yield f"the cap is that of {whose}", {"cap": cap}
        yield f"the cap is that of {whose}, and is met a token late", {"cap": cap + 1}
        yield f"min_tokens is that of {whose}", {"least": asked.min_tokens}
