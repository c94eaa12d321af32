"""The counts of the contract, and workloads in which each of them is as large as asked.

A counter that is too narrow shows once its count is beyond a power of two, so each is swept across
powers of two. Prompts are short where the prompt is not the count: what a size costs is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batchproof.api import EngineConfig, Request, StepRecord
from batchproof.generators.strategies import cut_prompt, longest_context
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

LONGEST_CALL = 1024  # of a count that grows from call to call: a call has a time limit
AGREEMENT = 0.9  # of the draft: of 7 drafts a step, 4.7 are accepted on average

Trace = Sequence[StepRecord]


@dataclass(frozen=True, slots=True)
class Count:
    """A count, from 2 ** 7 on: how far it is swept, and how a workload brings it there."""

    name: str  # behind a number
    promise: Promise  # which a wrong answer breaks that appears beyond a size
    # Bring the count from one size to another.
    calls: Callable[[Oracle, int, int], tuple[Workload, ...]]
    least: int  # the exponent to which it is swept in any run
    most: int  # the exponent beyond which it is not cheap, or that no memory holds
    seconds: float  # for which the profile default goes on beyond `least`
    shown: Callable[[Trace], int]  # how large it was in this trace
    grows: bool = False  # over the calls of one engine; else each size has an engine of its own
    is_owed: bool = True  # by an engine with `SCHEDULING`; else it may choose less

    def sizes(self, first: int) -> Iterator[int]:
        """Yields one more than each power of two from exponent `first` on, and, for a count that grows,
        what calls bring it there."""
        size = 0
        for exponent in range(first, self.most + 1):
            while self.grows and (1 << exponent) + 1 - size > LONGEST_CALL:
                size += LONGEST_CALL
                yield size
            size = (1 << exponent) + 1
            yield size


def _requests(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """All with new ids and prompts; few tokens, so that they cost steps and nothing else."""
    sizes = [(1 + i % 3, 1 + (i % 8 == 0)) for i in range(first, size)]
    return (_with_sizes(oracle, first, sizes, EngineConfig(max_num_seqs=256)),)


def _steps(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """One slot, and a token a step."""
    cap = min(128, longest_context(oracle) - 1)
    caps = [min(cap, size - at) for at in range(first, size, cap)]
    return (_with_sizes(oracle, first, [(1, each) for each in caps], EngineConfig(max_num_seqs=1)),)


def _tokens_fed(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """Prompts of which every token counts in the answer; in a longer one not all do on `gpt2-long`."""
    lens = [min(8, size - at) for at in range(first, size, 8)]
    return (_with_sizes(oracle, first, [(each, 1) for each in lens], EngineConfig(max_num_seqs=64)),)


def _drafts(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """Half as many are rejected besides."""
    config = EngineConfig(max_num_seqs=8, num_speculative_tokens=7, draft_agreement=AGREEMENT)
    return (_with_sizes(oracle, first, [(2, 48)] * max(1, (size - first) // 40), config),)


def _slots(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """All decode at once, and one request more waits."""
    config = EngineConfig(max_num_seqs=size, max_num_batched_tokens=2 * size)
    return (_with_sizes(oracle, size, [(1 + i % 2, 2 + i % 2) for i in range(size + 1)], config),)


def _tokens_held(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """A block each. Who comes first goes on until the last is fed; then all decode."""
    length = min(-(-size // 64), longest_context(oracle) // 2)
    num = -(-size // length)
    caps = [4 + (num - i) * length // (2048 - num) for i in range(num)]  # steps until all are fed
    config = EngineConfig(max_num_seqs=num, block_size=1, num_blocks=num * length + sum(caps))
    return (_with_sizes(oracle, size, [(length, cap) for cap in caps], config),)


def _sharers(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """One block of one prompt, which the first call computes. Half of those that share it end at once,
    and newcomers take more blocks than they leave, so that one that counts as free is written."""
    vocab_size = oracle.subject.vocab_size
    prefix = cut_prompt(vocab_size, size, 2)
    sharers = tuple(
        Request(f"sharer-{i}", (*prefix, i % vocab_size, i // vocab_size), 2 if i % 2 else 7)
        for i in range(size)
    )
    others = tuple(
        Request(f"other-{i}", cut_prompt(vocab_size, size + 3 * i + 3, 5), 4) for i in range(size)
    )
    needed = 1 + sum((len(each.prompt_token_ids) + each.max_new_tokens) // 2 for each in sharers)
    config = EngineConfig(
        max_num_seqs=size,
        max_num_batched_tokens=max(2048, size),
        block_size=2,
        num_blocks=needed,
        prefix_caching=True,
    )
    first = Request("first", (*prefix, 0), 1)
    return Workload((first,), config), Workload((*sharers, *others), config)


def _with_sizes(
    oracle: Oracle, first: int, sizes: Sequence[tuple[int, int]], config: EngineConfig
) -> Workload:
    """Returns a request for each pair of a length and a cap, with ids and prompts new for `first`."""
    vocab_size = oracle.subject.vocab_size
    return Workload(
        tuple(
            Request(f"r{first}-{i}", cut_prompt(vocab_size, first + 3 * i, length), cap)
            for i, (length, cap) in enumerate(sizes)
        ),
        config,
    )


def most_tokens_held(trace: Trace) -> int:
    """Returns how many keys all running sequences had together, at most."""
    held: dict[str, int] = {}
    most = 0
    for record in trace:
        held |= dict.fromkeys(record.preempted, 0)
        held |= {row.request_id: row.cached_len for row in record.rows}
        most = max(most, sum(held.values()))
        held |= dict.fromkeys(record.finished, 0)
    return most


def most_sharers(trace: Trace) -> int:
    """Returns how many requests began behind keys of others in one step, at most."""
    return max(
        sum(row.context_len > 0 for row in each.rows if row.request_id in each.admitted)
        for each in trace
    )


def num_finished(trace: Trace) -> int:
    return sum(len(record.finished) for record in trace)


def most_rows(trace: Trace) -> int:
    return max(len(record.rows) for record in trace)


def num_accepted(trace: Trace) -> int:
    return sum(row.num_accepted for record in trace for row in record.rows)


def num_steps(trace: Trace) -> int:
    """Returns how many steps there were; one with drafts, which are lawful unasked, counts as those
    that their tokens take without."""
    return sum(max([1, *(row.num_sampled for row in record.rows)]) for record in trace)


def num_tokens_fed(trace: Trace) -> int:
    return sum(row.query_len for record in trace for row in record.rows)


COUNTS = {
    each.name: each
    for each in (
        Count("requests served", Promise.P8, _requests, 10, 16, 20, num_finished, grows=True),
        Count("steps", Promise.P8, _steps, 7, 16, 3, num_steps, grows=True),
        Count("tokens fed", Promise.P8, _tokens_fed, 8, 16, 8, num_tokens_fed, grows=True),
        Count(
            "drafts accepted", Promise.P17, _drafts, 7, 16, 3, num_accepted, grows=True, is_owed=False
        ),
        Count("slots", Promise.P5, _slots, 8, 13, 2, most_rows),
        Count("tokens held", Promise.P5, _tokens_held, 8, 16, 3, most_tokens_held),
        Count("sharers", Promise.P5, _sharers, 8, 12, 3, most_sharers, is_owed=False),
    )
}
