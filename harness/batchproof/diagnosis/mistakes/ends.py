"""Mistakes in an answer's end: whose EOS ids, stop sequence or cap, and where they are looked for."""

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from batchproof.api import FinishReason
from batchproof.diagnosis.hypotheses import Answer, Hypothesis
from batchproof.oracle.choosing import sampling_of

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

    def end_of(self, tokens: Tokens) -> tuple[float, FinishReason]:
        """Returns the length and the finish reason; infinite if these tokens do not end it."""
        for num in range(1, len(tokens) + 1):
            sofar = self.before + tokens[:num]
            is_there = any(sofar[-len(each) :] == each for each in self.stops)
            is_stopped = num >= self.least and is_there
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
    is_right = right.end_of(tokens) == (num, reason)
    is_eos_at_cap = num == cap and tokens[-1] in right.eos
    # Where the mistake would show, it gives a wrong answer, else the right one.
    at_the_cap = "an EOS exactly at the cap is reported as the cap", is_right != is_eos_at_cap
    changed = (
        (mistake, right._replace(**changes).end_of(tokens) == (num, reason))
        for mistake, changes in (*_changes(own, right), *_of_others(own, right))
    )
    for mistake, is_given in (("", is_right), at_the_cap, *changed):
        yield Hypothesis(mistake, RIGHT if is_given else WRONG)


def _changes(own: Answer, right: Ending) -> Iterator[tuple[str, dict[str, Any]]]:
    eos, stops, least, cap, *_ = right
    lengths = frozenset(range(1, len(own.completion.token_ids) + 1))
    lasts = {*(each.first for each in own.outputs), len(own.completion.token_ids)}
    yield "the cap is one too high", {"cap": cap + 1}
    yield "the cap is one too low", {"cap": cap - 1}
    yield "the cap counts the prompt", {"cap": cap - own.num_prompt}
    yield "its EOS ids are not looked for", {"eos": frozenset()}
    yield "its stop sequences are not looked for", {"stops": ()}
    yield "the first token is not compared with EOS ids", {"unseen": {1}}
    if len(eos) > 1:
        yield "not all of its EOS ids are looked for", {"eos": eos - {*own.completion.token_ids[:-1]}}
    if own.has_drafts:
        yield "only the last token of a step is looked at", {"unseen": lengths - lasts}
        yield (
            "the cap is looked at behind a whole step",
            {"cap": min({n for n in lasts if n >= cap} | {cap})},
        )
    yield "a stop sequence may begin in the prompt", {"before": own.request.prompt_token_ids}
    if eos & {*own.request.prompt_token_ids}:
        yield "an EOS in the prompt ends it", {"eos": frozenset(own.tokens[:1])}
    yield "only stop sequences of one token are seen", {"stops": tuple(s for s in stops if len(s) == 1)}
    yield "min_tokens does not hold back stop sequences", {"least": 0}
    yield "min_tokens counts the prompt", {"least": least - own.num_prompt}
    records = own.calls[own.call].schedule()
    num = sum(own.request.request_id in record.preempted for record in records)
    yield "each preemption counts as a token of the cap", {"cap": cap - num}


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
