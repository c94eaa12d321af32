"""Tries mistakes in what is made of right logits: a token's choice, its logprobs, the end of an answer.

A family yields what each of its mistakes would give for one answer, the right computation first. A
mistake is named only if it gives whatever is wrong there; of several the one that also gives what is
wrong of other answers, gives least that is not so, and is the plainest: families yield those first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from batchproof.api import Completion, FinishReason, Limits, Request
from batchproof.diagnosis.reruns import Call, Rerunner, is_bad
from batchproof.findings.causes import Cause
from batchproof.oracle.choosing import Past, past_of
from batchproof.oracle.oracle import Oracle

NUM_OTHERS = 12  # requests whose parameters, rows or ends are tried
NUM_COMPARED = 8  # answers on which a mistake is tried besides
MOST_RIVALS = 3
FORGOTTEN = frozenset({FinishReason.ERROR, FinishReason.ABORTED})


@dataclass(frozen=True, slots=True)
class Output:
    """Where a token was chosen: the step of the call, its row, the number of the first output of that
    step, how many drafts the row had, and the outputs known when the request was last preempted."""

    step: int
    row: int
    first: int
    num_drafted: int
    num_resumed: int


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a request, of call number `call`, and all that the oracle says of its tokens.
    `tokens` ends at the cap."""

    request: Request
    completion: Completion
    call: int
    calls: Sequence[Call]
    oracle: Oracle
    peers: Sequence[Answer]  # itself included

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.completion.token_ids)[: self.request.max_new_tokens]

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt_token_ids + self.tokens

    @cached_property
    def behind(self) -> Tensor:
        """The logits behind each token of prompt and answer, float64 `(len(ids), vocab)`."""
        return self.oracle.score(self.ids[:1], (*self.ids[1:], 0))

    @property
    def logits(self) -> Tensor:
        """What each token should be chosen from, before its parameters, `(n, vocab)`."""
        return self.behind[self.num_prompt - 1 : -1]

    @cached_property
    def past(self) -> Past:
        return past_of(self.request, self.tokens, self.logits.shape[1])

    @cached_property
    def others(self) -> list[Answer]:
        """The answers to other requests, those of the same call first."""
        others = [each for each in self.peers if each is not self]
        return sorted(others, key=lambda each: (each.call != self.call, -each.call))[:NUM_OTHERS]

    @cached_property
    def outputs(self) -> list[Output]:
        """Where each token was chosen, by the trace as far as that goes; one a step behind it."""
        found: list[Output] = []
        num_resumed = 0
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
    limits, found = Limits.of(oracle.subject.model, calls[-1].workload.config), list[Answer]()
    known = range(limits.vocab_size)
    for number, call in enumerate(calls):
        for request in call.workload.requests:
            given = call.completion(request.request_id)
            if given is None or not given.token_ids or given.finish_reason in FORGOTTEN:
                continue
            has_answer = oracle.subject.has_answer(request.prompt_token_ids)
            if has_answer and all(t in known for t in given.token_ids) and not is_bad(request, oracle):
                found.append(Answer(request, given, number, calls, oracle, found))
    return found


Places = frozenset[Hashable]
Where = set[tuple[Answer, Hashable]]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A mistake, named alike for each answer, and the places of this one that it does not give.

    `width`: the logarithm of how many answers it allows; the right computation has no `mistake`.
    """

    mistake: str
    misses: Places
    width: float = 0.0
    cause: Cause | None = None  # None: that of its family

    @property
    def is_of_another(self) -> bool:
        """Whether it names another request."""
        return "'" in self.mistake


Family = Callable[[Answer], Iterator[Hypothesis]]


def wrong_places(family: Family, answer: Answer) -> Places:
    return next(family(answer)).misses


@dataclass(frozen=True, slots=True)
class Named:
    """The mistake that explains an answer, and the evidence for it."""

    text: str
    evidence: tuple[str, ...]
    cause: Cause | None = None


def named_mistake(
    rerunner: Rerunner, family: Family, own: Answer, more: Sequence[Answer] = ()
) -> Named | None:
    """Returns the mistake that gives all that is wrong with the answer; None if none does. `more`:
    answers to the same request in reruns."""
    right, *tried = rerunner.in_time(family(own))
    fits = {each.mistake: each for each in tried if not each.misses & right.misses}
    wrong = {(own, at) for at in right.misses}
    missed = {name: {(own, at) for at in each.misses} for name, each in fits.items()}
    num_fits, num_wrong = Counter[str](), 0
    others = [each for each in own.peers if each is not own][:NUM_COMPARED]
    for other in rerunner.in_time((*more, *others) if fits else ()):
        honest, *its = family(other)
        wrong |= {(other, at) for at in honest.misses}
        num_wrong += bool(honest.misses)
        for each in {each.mistake: each for each in its}.values():
            if each.mistake in fits:
                num_fits[each.mistake] += bool(honest.misses) and not each.misses & honest.misses
                missed[each.mistake] |= {(other, at) for at in each.misses}
    if not fits:
        return None
    rank = {
        name: (-num_fits[name], len(missed[name]), each.width, each.is_of_another)
        for name, each in fits.items()
    }
    best, *rest = sorted(fits, key=lambda name: rank[name])
    lines = [_extent(own, right.misses, fits[best].misses), *_where(wrong, missed[best])]
    if num_wrong:
        lines.append(f"of {num_wrong} more wrong answers it explains {num_fits[best]}")
    rivals = [name for name in rest if rank[name][:3] == rank[best][:3]]
    if rivals:
        others_too = f" and {len(rivals) - MOST_RIVALS} more" if len(rivals) > MOST_RIVALS else ""
        lines.append(f"as well explained by: {'; '.join(rivals[:MOST_RIVALS])}{others_too}")
    return Named(best, tuple(lines), fits[best].cause)


def _extent(own: Answer, wrong: Places, missed: Places) -> str:
    is_weak = len(wrong) == 1 and all(isinstance(at, int) for at in wrong)
    weak = " (one token fits many mistakes)" if is_weak else ""
    if not missed:
        return f"an oracle that makes it gives this very answer{weak}"
    share = f"at {len(wrong)} of {len(own.tokens)} tokens{weak}"
    return f"an oracle that makes it gives what is wrong, {share}"


def _where(wrong: Where, missed: Where) -> Iterator[str]:
    """Says where the mistake is made if it is not made everywhere it would show."""
    for words, has_it in WHERE.items() if missed - wrong else ():
        if all(has_it(*each) for each in wrong - missed) and not any(has_it(*each) for each in missed):
            yield f"it is made {words}"
            return


def _of_output(test: Callable[[int, Output], bool]) -> Callable[[Answer, Hashable], bool]:
    def has_it(own: Answer, at: Hashable) -> bool:
        return isinstance(at, int) and test(at, own.outputs[at])

    return has_it


WHERE = {
    "at the first token alone": _of_output(lambda at, _: at == 0),
    "behind the first token": _of_output(lambda at, _: at > 0),
    "behind a preemption": _of_output(lambda _, each: each.num_resumed > 0),
    "behind the first token of a step with drafts": _of_output(lambda at, each: at > each.first),
    "where there are drafts": _of_output(lambda _, each: each.num_drafted > 0),
    "in the first row": _of_output(lambda _, each: each.row == 0),
    "in all rows but the first": _of_output(lambda _, each: each.row > 0),
}
