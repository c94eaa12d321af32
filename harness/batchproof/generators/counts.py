"""The counts of the contract, each with workloads that take it across powers of two.

Beyond such a power a counter that is too narrow shows. Prompts are short where the prompt is not the
count: what a size costs is the engine's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from batchproof.api import EngineConfig, Request, StepRecord
from batchproof.generators.strategies import cut_prompt, half_of, longest_context
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

KERNEL_BLOCK = 32  # tokens: what the kernels of some engines take a multiple of
LONGEST_CALL = 1024  # of a count that grows from call to call: a call has a time limit


@dataclass(frozen=True, slots=True)
class Count:
    """A count: how far it is swept, and how a workload brings it there."""

    promise: Promise  # which a wrong answer breaks that appears beyond a size
    calls: Callable[[Oracle, int, int], tuple[Workload, ...]]  # from one size to another
    least: int  # the exponent to which it is swept in any run
    most: int  # the exponent beyond which it is not cheap, or that no memory holds
    seconds: float  # for which the profile default goes on beyond `least`
    in_step: Callable[[StepRecord], int]  # what a step adds, or how large the count is in it
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

    def shown(self, trace: Sequence[StepRecord]) -> int:
        """Returns how large the count was in this trace."""
        values = map(self.in_step, trace)
        return sum(values) if self.grows else max(values, default=0)


def _requests(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """Every other 64 outgrow the pool, and are preempted while others wait."""
    sizes = [(1 + i % 3, 1 if i // 64 % 2 else 6) for i in range(first, size)]
    config = EngineConfig(max_num_seqs=256, block_size=2, num_blocks=32)
    return (_with_sizes(oracle, first, sizes, config),)


def _steps(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """One slot, and a token a step."""
    cap = min(128, longest_context(oracle) - 1)
    sizes = [(1, min(cap, size - at)) for at in range(first, size, cap)]
    return (_with_sizes(oracle, first, sizes, EngineConfig(max_num_seqs=1)),)


def _tokens_fed(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """Prompts of which every token counts in the answer; in a longer one not all do on `gpt2-long`."""
    sizes = [(min(8, size - at), 1) for at in range(first, size, 8)]
    return (_with_sizes(oracle, first, sizes, EngineConfig(max_num_seqs=64)),)


def _drafts(oracle: Oracle, first: int, size: int) -> tuple[Workload, ...]:
    """Of 7 drafts a step 4.7 are accepted on average: most of these in one long answer."""
    config = EngineConfig(max_num_seqs=8, num_speculative_tokens=7, draft_agreement=0.9)
    long = min(longest_context(oracle) - 2, 48 + (size - first))
    short = [(2, 48)] * max(1, (size - first) // 144)
    return (_with_sizes(oracle, first, [(2, long), *short], config),)


def _drafts_at_once(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """Rows of 7 tokens each, so that wherever a step is cut in parts of a power of two tokens, a row is
    cut amid its drafts. All prompts are fed in one step."""
    num = -(-size // 7)
    config = EngineConfig(
        max_num_seqs=num, max_num_batched_tokens=7 * num, num_speculative_tokens=6, draft_agreement=0.9
    )
    return (_with_sizes(oracle, size, [(2, 12)] * num, config),)


def _slots(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """All decode at once, but for some that end at their first token, and one request more waits."""
    config = EngineConfig(max_num_seqs=size, max_num_batched_tokens=2 * size)
    sizes = [(1 + i % 2, 2 + i % 2) for i in range(size + 1)]
    made = _with_sizes(oracle, size, sizes, config)
    wanted = [*made.requests]
    for i in range(0, len(wanted), 3):
        wanted[i] = replace(wanted[i], eos_token_ids=half_of(oracle.subject.vocab_size))
    return (made.with_requests(wanted),)


def _tokens_held(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """A block each. Who comes first goes on until the last is fed; then all decode."""
    length = min(-(-size // 64), longest_context(oracle) // 2)
    num = -(-size // length)
    caps = [4 + (num - i) * length // (2048 - num) for i in range(num)]  # steps until all are fed
    num_blocks = sum(_whole_blocks(length + cap) for cap in caps)
    config = EngineConfig(max_num_seqs=num, block_size=1, num_blocks=num_blocks)
    return (_with_sizes(oracle, size, [(length, cap) for cap in caps], config),)


def _sharers(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """A block that the first call computes, and nobody goes on from to another. One of those that share
    it ends soon, and then half of the rest again and again, so that each power of two holds it for a
    while: there a counter that is too narrow is 0. Newcomers take what is left to them, and grow: they
    write a block that is wrongly free."""
    vocab_size = oracle.subject.vocab_size
    halved = [(size - 1).bit_length() - (size - 1 - i).bit_length() for i in range(size)]
    block_size = _whole_blocks(8 + 3 * halved[-1])
    prefix = cut_prompt(vocab_size, size, block_size)
    sharers = [
        Request(f"sharer-{i}", (*prefix, i % vocab_size, i // vocab_size), 2 + 3 * times)
        for i, times in enumerate(halved)
    ]
    config = EngineConfig(
        max_num_seqs=size,
        max_num_batched_tokens=2048 + size,
        block_size=block_size,
        num_blocks=1 + size,
        prefix_caching=True,
    )
    others = _with_sizes(oracle, size + 3, [(2 * block_size - 1, 4)] * (size // 2), config).requests
    first = Request("first", (*prefix, 0), 1)
    return Workload((first,), config), Workload((*sharers, *others), config)


def _prefix_blocks(oracle: Oracle, _: int, size: int) -> tuple[Workload, ...]:
    """Prompts of blocks that hold a token each: the second halves of two are equal, the first are not;
    a third begins as the first does, for half of its blocks."""
    size = min(size, longest_context(oracle) - 3)
    first, other, end = (cut_prompt(oracle.subject.vocab_size, n, size // 2) for n in (size, 0, 1))
    halves = (first, end), (other, end), (first, other)
    wanted = [Request(f"r{n}", (*start, *rest, n), 2) for n, (start, rest) in enumerate(halves)]
    config = EngineConfig(max_num_seqs=3, block_size=1, num_blocks=4 * size, prefix_caching=True)
    calls = [[each] for each in wanted] + [wanted]
    return tuple(Workload(tuple(each), config) for each in calls)


def _whole_blocks(num_tokens: int) -> int:
    return KERNEL_BLOCK * -(-num_tokens // KERNEL_BLOCK)


def _with_sizes(
    oracle: Oracle, first: int, sizes: Sequence[tuple[int, int]], config: EngineConfig
) -> Workload:
    """Returns a request for each pair of a length and a cap, with ids and prompts new for `first`."""
    vocab_size = oracle.subject.vocab_size
    wanted = (
        Request(f"r{first}-{i}", cut_prompt(vocab_size, first + 3 * i, length), cap)
        for i, (length, cap) in enumerate(sizes)
    )
    return Workload(tuple(wanted), config)


def _rows(value: str) -> Callable[[StepRecord], int]:
    return lambda record: sum(getattr(row, value) for row in record.rows)


def _taken_over(record: StepRecord) -> list[int]:
    return [row.context_len for row in record.rows if row.request_id in record.admitted]


# A step with drafts, which are lawful unasked, counts as the steps that its tokens take without.
COUNTS = {
    "requests served": Count(
        Promise.P8, _requests, 10, 16, 24, lambda step: len(step.finished), grows=True
    ),
    "steps": Count(
        Promise.P8, _steps, 7, 16, 3, lambda step: max(1, _rows("num_sampled")(step)), grows=True
    ),
    "tokens fed": Count(Promise.P8, _tokens_fed, 8, 16, 8, _rows("query_len"), grows=True),
    "drafts accepted": Count(
        Promise.P17, _drafts, 7, 16, 3, _rows("num_accepted"), grows=True, is_owed=False
    ),
    "tokens fed to verify drafts in a step": Count(
        Promise.P17,
        _drafts_at_once,
        7,
        12,
        2,
        lambda step: sum(row.query_len for row in step.rows if row.num_drafted),
        is_owed=False,
    ),
    "slots": Count(Promise.P5, _slots, 8, 13, 2, lambda step: len(step.rows)),
    "tokens held": Count(Promise.P5, _tokens_held, 8, 16, 3, _rows("cached_len")),
    "sharers": Count(
        Promise.P5, _sharers, 8, 12, 3, lambda step: sum(map(bool, _taken_over(step))), is_owed=False
    ),
    "blocks of a prefix": Count(
        Promise.P5,
        _prefix_blocks,
        7,
        12,
        3,
        lambda step: max(_taken_over(step), default=0),
        is_owed=False,
    ),
}
