"""Tries mistakes in what is made of right logits: a token's choice, its logprobs, an answer's end.

A family yields what each of its mistakes would give for one answer, the right computation first and
then the plainest. A mistake is named only if it gives all that is wrong there; of several, the one that
also gives what is wrong of most other answers, and least that is not so.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

from torch import Tensor

from batchproof.api import Completion, FinishReason, Request
from batchproof.diagnosis.reruns import Call, Rerunner, Without, is_bad
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.oracle.choosing import Past, in_grammar, past_of, sampling_of
from batchproof.oracle.oracle import Oracle

NUM_OTHERS = 12  # requests whose rows are tried
NUM_COMPARED = 8  # answers on which a mistake is tried besides
MOST_RIVALS = 3
UNJUDGED = (FinishReason.ERROR, FinishReason.ABORTED)


class Output(NamedTuple):
    """Where a token was chosen."""

    step: int  # of its call
    row: int  # of that step
    first: int  # number of the first output of the step
    num_drafted: int
    num_resumed: int  # outputs known when the request was last preempted


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a request, and what the oracle says of its tokens; `tokens` ends at the cap."""

    request: Request
    completion: Completion
    call: int
    calls: Sequence[Call]
    oracle: Oracle
    peers: Sequence["Answer"]  # all of these calls

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.completion.token_ids)[: self.request.max_new_tokens]

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt_token_ids + self.tokens

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @cached_property
    def behind(self) -> Tensor:
        """The logits behind each token of prompt and answer, float64 `(len(ids), vocab)`."""
        return self.oracle.score(self.ids[:1], (*self.ids[1:], 0))

    @cached_property
    def logits(self) -> Tensor:
        """What each token should be chosen from, before its grammar and parameters, `(n, vocab)`."""
        return self.behind[self.num_prompt - 1 : -1]

    @cached_property
    def grammatical(self) -> Tensor:
        """The logits of what its grammar allows, `(n, vocab)`."""
        allowed = in_grammar(self.request, self.tokens, self.logits.shape[1])
        return self.logits.masked_fill(~allowed, -inf)

    @cached_property
    def past(self) -> Past:
        return past_of(self.request, self.tokens, self.logits.shape[1])

    @cached_property
    def neighbours(self) -> list["Answer"]:
        """The answers to other requests, those of the same call first."""
        others = [each for each in self.peers if each is not self]
        return sorted(others, key=lambda each: (each.call != self.call, -each.call))

    def unlikeness(self, other: Self) -> tuple[bool, int]:
        """Orders others by how much they can tell of a mistake in this answer: first those that ask for
        the same, and of them the nearest, which in a sweep of a size have the nearest sizes."""
        asked, its = sampling_of(self.request).changed, sampling_of(other.request).changed
        places = {each: at for at, each in enumerate(self.peers)}
        return asked != its, abs(places[self] - places[other])

    @property
    def others(self) -> list["Answer"]:
        """The first neighbours: so many as the oracle can be asked about."""
        return self.neighbours[:NUM_OTHERS]

    @cached_property
    def has_drafts(self) -> bool:
        return self.calls[self.call].workload.config.num_speculative_tokens is not None

    @cached_property
    def outputs(self) -> list[Output]:
        """Where each token was chosen, by the trace as far as that goes; one a step behind it."""
        found, num_resumed = list[Output](), 0
        for step, record in enumerate(self.calls[self.call].schedule()):
            num_resumed = len(found) if self.request.request_id in record.preempted else num_resumed
            for place, row in enumerate(record.rows):
                if row.request_id == self.request.request_id:
                    one = Output(step, place, len(found), row.num_drafted, num_resumed)
                    found += [one] * row.num_sampled
        more = range(len(found), len(self.tokens))
        return [*found[: len(self.tokens)], *(Output(num, 0, num, 0, 0) for num in more)]


def answers_of(calls: Sequence[Call], oracle: Oracle) -> list[Answer]:
    """Returns the answers that can be judged, in the order of calls and requests."""
    found: list[Answer] = []
    known = range(oracle.subject.vocab_size)
    for number, call in enumerate(calls):
        under = oracle.under(call.workload.adapters)
        for request in call.workload.requests:
            given = call.completion(request.request_id)
            is_judged = given and given.token_ids and given.finish_reason not in UNJUDGED
            if not (given and is_judged and all(token in known for token in given.token_ids)):
                continue
            if oracle.subject.has_answer(request.prompt_token_ids) and not is_bad(request, under):
                found.append(Answer(request, given, number, calls, under.of(request), found))
    return found


class Hypothesis(NamedTuple):
    """A mistake, named alike for each answer; the right computation has no name."""

    mistake: str
    misses: frozenset[Hashable]  # the places of the answer that it does not give
    width: float = 0.0  # the logarithm of how many answers it allows
    cause: Cause | None = None  # None: that of its family
    needs: Without | None = None  # what it cannot be made without


Family = Callable[[Answer], Iterator[Hypothesis]]
Places = set[tuple[Answer, Hashable]]
# Where a mistake may be made, by the number of an output and where that was chosen.
WHERE: dict[str, Callable[[int, Output], bool]] = {
    "at the first token alone": lambda at, _: at == 0,
    "behind the first token": lambda at, _: at > 0,
    "behind a preemption": lambda _, each: each.num_resumed > 0,
    "behind the first token of a step with drafts": lambda at, each: at > each.first,
    "where there are drafts": lambda _, each: each.num_drafted > 0,
    "in the first row": lambda _, each: each.row == 0,
    "in all rows but the first": lambda _, each: each.row > 0,
}


def is_wrong(family: Family, answer: Answer) -> bool:
    return bool(next(family(answer)).misses)


def named_mistake(
    rerunner: Rerunner,
    family: Family,
    own: Answer,
    more: Sequence[Answer],
    cause: Cause,
    is_right: Mapping[Without, bool | None],
) -> Diagnosis | None:
    """Returns the mistake that gives all that is wrong with the answer, and evidence; None if none
    does. `more`: answers to the same request in reruns; `cause`: that of the family; `is_right`: what
    the answer is right without, which comes first if a mistake needs it."""
    tried = family(own)
    right = next(tried)
    tested = (h for h in rerunner.in_time(tried) if not h.needs or is_right.get(h.needs) is not False)
    fits = {each.mistake: each for each in tested if not each.misses & right.misses}
    wrong: Places = {(own, at) for at in right.misses}
    missed: dict[str, Places] = {name: {(own, at) for at in fits[name].misses} for name in fits}
    num_wrong, num_fits = 0, Counter[str]()
    others = sorted((each for each in own.peers if each is not own), key=own.unlikeness)[:NUM_COMPARED]
    for other in rerunner.in_time((*more, *others) if fits else ()):
        honest, *its = family(other)
        wrong |= {(other, at) for at in honest.misses}
        num_wrong += bool(honest.misses)
        for each in {each.mistake: each for each in its if each.mistake in fits}.values():
            num_fits[each.mistake] += bool(honest.misses) and not each.misses & honest.misses
            missed[each.mistake] |= {(other, at) for at in each.misses}
    fits = {name: each for name, each in fits.items() if 2 * num_fits[name] >= num_wrong}
    if not fits:  # a mistake that leaves most of what is wrong unexplained is not the one
        return None
    where = {name: _where(wrong, missed[name]) for name in fits}
    is_needed = {each for each in Without if is_right.get(each)}
    num_missed = {name: 0 if where[name] else len(missed[name]) for name in fits}
    rank = {
        name: (each.needs not in is_needed, -num_fits[name], num_missed[name], each.width)
        for name, each in fits.items()
    }
    best, *rest = sorted(fits, key=lambda name: rank[name])
    lines = ["an oracle that makes it gives this very answer"]
    if fits[best].misses:
        share = f"at {len(right.misses)} of {len(own.tokens)} tokens"
        lines = [f"an oracle that makes it gives what is wrong, {share}"]
    if len(wrong) == 1 and all(isinstance(at, int) for at in right.misses):
        lines[0] += " (one token fits many mistakes)"
    lines += where[best]
    if num_wrong:
        lines.append(f"of {num_wrong} more wrong answers it explains {num_fits[best]}")
    rivals = [name for name in rest if rank[name] == rank[best]]
    if rivals:
        extra = f" and {len(rivals) - MOST_RIVALS} more" if len(rivals) > MOST_RIVALS else ""
        lines.append(f"as well explained by: {'; '.join(rivals[:MOST_RIVALS])}{extra}")
    return Diagnosis(fits[best].cause or cause, best, tuple(lines))


def _where(wrong: Places, missed: Places) -> list[str]:
    """Says where the mistake is made, if not everywhere that it would show."""
    made, not_made = (
        [(at, each.outputs[at]) for each, at in places if isinstance(at, int)]
        for places in (wrong - missed, missed)
    )
    fitting = (
        words
        for words, has_it in WHERE.items()
        if all(has_it(*each) for each in made) and not any(has_it(*each) for each in not_made)
    )
    return [f"it is made {words}" for words in fitting][:1] if made and not_made else []
