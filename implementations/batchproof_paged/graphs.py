"""Decode steps without the host's work: launched once, captured, and replayed.

A captured step reads its input from a tensor that never moves. It has room for a number of rows, of
which there are few (`decode_buckets`); a smaller step is filled up with padding, which belongs to the
trash lane: it has no keys to read, writes to the trash block and chooses its tokens for that lane.
Nothing in a captured step may depend on a value that the host knows. Steps with prompts are not
captured: the device is busy with most of them for longer than the host takes to launch them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import DecodeRows, StepRows
from batchproof_paged.staging import Staging

Outputs = tuple[Tensor, ...]  # the chosen token ids (S,) and, if they are wanted, logits (S, vocab)
Forward = Callable[[Tensor, Tensor, Tensor], Outputs]  # ids, positions (1, T), sampled places (S,)
Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]

NUM_WARM_UPS = 2  # the first may compile, the second runs what was compiled


def call_again(step: Step) -> Step:
    """Stands in for a capture where there are no graphs; all else is as with graphs."""
    return step


class CudaCapture:
    """Records what a step launches.

    All graphs take their memory from one pool, because no two of them run at the same time. Record the
    largest first, so that the others fit into its memory. A pool without a graph is gone: call `forget`
    before recording the next one.
    """

    checks: ClassVar[dict[str, Any]] = {}  # more arguments of `torch.cuda.graph`, for tests

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Starts a new memory pool: the graphs recorded so far are no longer used."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        try:
            return self._recorded(step, _stream(self._device))
        except BaseException:
            # The stream may be capturing still, and the pool be half a recording's.
            _stream.cache_clear()
            self.forget()
            raise

    def _recorded(self, step: Step, stream: torch.cuda.Stream) -> Step:
        # One-time work (allocation, compilation, choice of algorithms) must not be recorded.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Work of other threads, such as a pinned allocation, must not invalidate this capture.
        modes = {"capture_error_mode": "thread_local", **self.checks}
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, **modes):
            outputs = step()

        def replay(_held: Step = step) -> Outputs:
            # A graph reads again where tensors lay when it was recorded, and keeps none of them alive.
            # The step does: what it reads and has not made itself, it holds.
            graph.replay()
            return outputs

        return replay


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream for warm-ups and recordings of all engines: each keeps a cuBLAS workspace."""
    return torch.cuda.Stream(device)


class LastTokens:
    """The newest token of each lane, on the device: what the host has not read can be fed already."""

    def __init__(self, num_lanes: int, device: torch.device) -> None:
        self._ids = torch.zeros(num_lanes + 1, dtype=torch.int64, device=device)

    def fill_in(self, token_ids: Tensor, lanes: Tensor) -> Tensor:
        """`token_ids` (N,) with those that are `PENDING`, below 0, replaced by their lane's newest."""
        return torch.where(token_ids < 0, self._ids[lanes], token_ids)

    def put(self, lanes: Tensor, token_ids: Tensor) -> None:
        self._ids[lanes] = token_ids


class _Captured(NamedTuple):
    inputs: Tensor  # int64: what `_inputs` makes, end to end
    rows: StepRows  # views of it, for the pool
    run: Step


class CapturedSteps:
    """One captured step for each number of rows and of columns of the block tables; made when it is
    first needed, or by `prepare`."""

    def __init__(
        self,
        pool: BlockPool,
        forward: Forward,
        last_tokens: LastTokens,
        buckets: Seq[int],
        capture: Capture,
        forget: Callable[[], None],
    ) -> None:
        """`buckets` are the numbers of rows, ascending. `forget` is called when all that was captured
        is void."""
        self._pool = pool
        self._forward = forward
        self._last_tokens = last_tokens
        self._buckets = buckets
        self._capture, self._forget = capture, forget
        self._staging = Staging(last_tokens._ids.device)
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._generation = pool.generation
        self._places: list[int] = []  # of the model's weights

    def can_run(self, batch: RaggedBatch) -> bool:
        """Is it a step of decodes, behind each of which one token is chosen?"""
        return 0 < batch.num_decodes == len(batch.lanes) and not batch.scored_rows

    @torch.inference_mode()
    def prepare(self, seq_len: int) -> None:
        """Captures all sizes, the largest first, for rows of up to `seq_len` keys."""
        num_columns = self._pool.graph_columns(seq_len)
        for num_rows in reversed(self._buckets):
            self._step_for(num_rows, num_columns)

    @torch.inference_mode()
    def run(self, batch: RaggedBatch) -> Outputs:
        """The outputs of the batch's S sampled rows, on the device.

        The next step overwrites them; what takes its turn on the stream before that may read them.
        """
        assert self.can_run(batch), "there is no captured step for it"
        self._pool.update_tables(batch)
        num_columns = self._pool.graph_columns(int(batch.seq_lens.max()))
        num_rows = self._buckets[bisect_left(self._buckets, len(batch.lanes))]
        captured = self._step_for(num_rows, num_columns)
        self._staging.send(*self._inputs(num_rows, batch), into=captured.inputs)
        self._pool.begin_static(captured.rows)
        outputs = captured.run()
        num_sampled = len(batch.sampled_rows)
        if num_sampled < len(batch.lanes):
            # A prompt's chunk of one token, which is not sampled, passes for a decode.
            (rows,) = self._staging.send(batch.sampled_rows)
            return tuple(each[rows] for each in outputs)
        return tuple(each[:num_sampled] for each in outputs)

    def _inputs(self, num_rows: int, batch: RaggedBatch | None = None) -> list[Ints]:
        """Token ids, lanes and seq_lens of the rows; without a batch, padding alone."""
        if batch is None:
            columns: tuple[Ints, ...] = (np.empty(0, dtype=np.int64),) * 3
        else:
            columns = batch.token_ids, batch.lanes, batch.seq_lens
        return [
            _filled(num_rows, padding, column)
            for padding, column in zip((0, self._pool.trash_lane, 0), columns, strict=True)
        ]

    def follow(self, weights: Iterable[Tensor]) -> None:
        """Forgets all steps if the weights of the model lie elsewhere than when they were captured."""
        places = [each.data_ptr() for each in weights]
        if places != self._places:
            self._forget_all()
            self._places = places

    def _forget_all(self) -> None:
        if self._captured:
            self._captured.clear()
            self._forget()

    def _step_for(self, num_rows: int, num_columns: int) -> _Captured:
        if self._generation != self._pool.generation:  # its tensors are elsewhere now
            self._forget_all()
            self._generation = self._pool.generation
        size = num_rows, num_columns
        if size not in self._captured:
            self._captured[size] = self._new_step(*size)
        return self._captured[size]

    def _new_step(self, num_rows: int, num_columns: int) -> _Captured:
        # Captured while all rows are padding, so that no sequence notices the rehearsals.
        inputs = torch.from_numpy(np.concatenate(self._inputs(num_rows)))
        inputs = inputs.to(self._last_tokens._ids.device)
        token_ids, lanes, seq_lens = inputs.split(num_rows)
        last = torch.arange(num_rows, device=inputs.device)
        # No step may hold on to this object: an engine that is dropped gives its memory back at once.
        last_tokens, forward = self._last_tokens, self._forward

        def step() -> Outputs:
            tokens = last_tokens.fill_in(token_ids, lanes)
            positions = (seq_lens - 1).clamp_(min=0)
            outputs = forward(tokens[None], positions[None], last)
            last_tokens.put(lanes, outputs[0])
            return outputs

        rows = StepRows(DecodeRows(lanes, seq_lens, num_columns), None)
        self._pool.begin_static(rows)
        return _Captured(inputs, rows, self._capture(step))


def decode_buckets(most: int, least: int = 1) -> Seq[int]:
    """Returns 1, 2, 4, 8, then multiples of 8: little padding for many rows, few graphs for few."""
    sizes = [1, 2, 4, *range(8, most + 8, 8)]
    return [size for size in sizes if least <= size < most] + [most]


def _filled(size: int, padding: int, values: Ints) -> Ints:
    """(size,) `values`, then padding."""
    if len(values) == size:
        return values
    filled = np.full(size, padding, dtype=np.int64)
    filled[: len(values)] = values
    return filled
