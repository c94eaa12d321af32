"""Every token that an engine fed to its model, as one table: which, when, and beside which others.

It is made from the engine's trace or, without one, from the simplest schedule that the limits allow. A
counterfactual reference changes a copy of it: another token, another position, another set of visible
keys. One pass of the reference over the changed table gives the answer that this mistake would have
given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from batchproof.api import Completion, Request, RowRecord, StepRecord
from batchproof.workload.workloads import Workload


@dataclass(frozen=True, slots=True)
class FedSequence:
    """One request of one call: its prompt and the engine's outputs."""

    request: Request
    call: int
    token_ids: tuple[int, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, the first of `token_ids`."""
        return len(self.request.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class Sample:
    """Output number `output` of sequence `seq`, chosen from the logits of cell `cell`."""

    cell: int
    seq: int
    output: int


@dataclass(frozen=True, slots=True)
class CellTable:
    """One cell for each fed token; each column is an int64 tensor `(num_cells,)`.

    `seq`: number of the sequence; `index`: place in the sequence, which is the right position; `token`:
    token id; `step`: when it was fed; `row`: number of its row in that step; `packed`: place in that
    step's packed row; `epoch`: how often the sequence was preempted before; `context_len`, `query_len`:
    those of its row; `is_reused` (0 or 1): not fed, but reused from a prefix cache.
    """

    sequences: tuple[FedSequence, ...]
    samples: tuple[Sample, ...]
    seq: Tensor
    index: Tensor
    token: Tensor
    step: Tensor
    row: Tensor
    packed: Tensor
    epoch: Tensor
    context_len: Tensor
    query_len: Tensor
    is_reused: Tensor

    @property
    def num_cells(self) -> int:
        """Number of fed tokens, reused ones included."""
        return len(self.seq)

    def num_prompt_tokens(self) -> Tensor:
        """Returns the prompt length of each cell's sequence, `(num_cells,)`."""
        return torch.tensor([fed.num_prompt_tokens for fed in self.sequences])[self.seq]

    def is_decode(self) -> Tensor:
        """Returns whether each cell is the single token of a decode row, bool `(num_cells,)`."""
        return (self.query_len == 1) & (self.context_len > 0)

    def distance(self) -> Tensor:
        """Returns the distance of each query from each key in their sequences, int64 `(query, key)`."""
        return self.index[:, None] - self.index

    def in_window(self, window: int | None) -> Tensor:
        """Returns whether no query is a window or more behind the key, bool `(query, key)`."""
        gap = self.distance()
        return torch.ones_like(gap, dtype=torch.bool) if window is None else gap < window

    def among_own(self) -> Tensor:
        """Returns whether query and key are of one sequence and epoch, bool `(query, key)`."""
        return (self.seq[:, None] == self.seq) & (self.epoch[:, None] == self.epoch)

    def fed_by_then(self) -> Tensor:
        """Returns whether the key is cached, or fed in the same step as the query, bool
        `(query, key)`."""
        return self.step <= self.step[:, None]

    def own_keys(self, window: int | None) -> Tensor:
        """Returns the right mask, bool `(query, key)`: same sequence, same epoch, not later."""
        return self.among_own() & (self.distance() >= 0) & self.in_window(window)


Columns = tuple[int, int, int, int, int, int, int, int, int, int]


def cell_table_of(
    calls: Sequence[tuple[Workload, Sequence[Completion], Sequence[StepRecord]]],
) -> CellTable | None:
    """Returns the table of all calls to one engine, in order; None if a trace feeds a token that does
    not exist, or nothing is fed."""
    sequences: list[FedSequence] = []
    cells: list[Columns] = []
    samples: list[Sample] = []
    step = 0
    for call, (workload, completions, trace) in enumerate(calls):
        numbers: dict[str, int] = {}
        for request, completion in zip(workload.requests, completions, strict=True):
            if request.request_id not in numbers:
                numbers[request.request_id] = len(sequences)
                tokens = request.prompt_token_ids + tuple(completion.token_ids)
                sequences.append(FedSequence(request, call, tokens))
        num_outputs = dict.fromkeys(numbers.values(), 0)
        epochs = dict.fromkeys(numbers.values(), 0)
        for record, is_reused in _with_reused_keys(trace, workload.config.prefix_caching):
            for request_id in record.preempted:
                if request_id in numbers:
                    epochs[numbers[request_id]] += 1
            packed = 0
            for number, row in enumerate(record.rows):
                seq = numbers.get(row.request_id)
                if seq is None or row.context_len + row.query_len > len(sequences[seq].token_ids):
                    return None
                for offset in range(row.query_len):
                    index = row.context_len + offset
                    token = sequences[seq].token_ids[index]
                    lens = (row.context_len, row.query_len)
                    cell = (seq, index, token, step, number, packed, epochs[seq], *lens, is_reused)
                    cells.append(cell)
                    packed += 1
                if row.is_sampled:
                    samples.append(Sample(len(cells) - 1, seq, num_outputs[seq]))
                    num_outputs[seq] += 1
            step += 1
    if not cells:
        return None
    return CellTable(tuple(sequences), tuple(samples), *torch.tensor(cells).unbind(-1))


def _with_reused_keys(
    trace: Sequence[StepRecord], has_prefix_cache: bool
) -> Iterator[tuple[StepRecord, bool]]:
    """Yields the records. Keys reused from a prefix cache form a step of their own before the first
    that sees them; its flag is True."""
    begun: set[str] = set()
    for record in trace:
        begun -= {*record.admitted, *record.preempted}
        reused = tuple(
            RowRecord(row.request_id, 0, row.context_len, False)
            for row in record.rows
            if has_prefix_cache and row.context_len > 0 and row.request_id not in begun
        )
        if reused:
            yield StepRecord(reused, (), (), (), record.preempted), True
        yield (replace(record, preempted=()) if reused else record), False
        begun |= {row.request_id for row in record.rows}


def plain_schedule(workload: Workload, completions: Sequence[Completion]) -> list[StepRecord]:
    """Returns the schedule assumed for an engine without a trace: first come first served, whole
    prompts, one token of each sequence in each step."""
    waiting = [
        (request, len(completion.token_ids))
        for request, completion in zip(workload.requests, completions, strict=True)
        if completion.token_ids
    ]
    running: list[tuple[Request, int, int]] = []  # request, outputs to come, keys cached
    trace: list[StepRecord] = []
    while waiting or running:
        while waiting and len(running) < workload.config.max_num_seqs:
            request, num_outputs = waiting.pop(0)
            running.append((request, num_outputs, 0))
        rows = tuple(
            RowRecord(r.request_id, cached, 1 if cached else len(r.prompt_token_ids), True)
            for r, _, cached in running
        )
        trace.append(StepRecord(rows, tuple(r.request_id for r, _ in waiting), (), (), ()))
        stepped = zip(running, rows, strict=True)
        left = [(r, todo - 1, row.context_len + row.query_len) for (r, todo, _), row in stepped]
        running = [each for each in left if each[1]]
    return trace
