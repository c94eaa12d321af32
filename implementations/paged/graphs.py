"""Decode-only steps without the host's work: launched once, recorded, and replayed.

A captured step reads its input from tensors that never move. It is made for a number of rows, a bucket;
a smaller step is filled up with padding rows, which have no keys to read, write to the trash block and
choose a token for the trash lane. Nothing in it may hang on a value that the host knows: a step with a
prompt in it, whose shapes differ each time, is not captured.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from implementations.paged.batch import Ints, RaggedBatch
from implementations.paged.blocks import BlockPool
from implementations.paged.kernels import DecodeRows, StepRows
from implementations.paged.staging import Staging

Outputs = tuple[Tensor, ...]  # first the chosen token ids (B,), then what else is wanted, (B, ...)
Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]
Forward = Callable[[Tensor, Tensor], Outputs]  # of token ids and positions, both (1, B)


class LastTokens:
    """The newest token of each lane, on the device: what the host has not read can be fed already."""

    def __init__(self, num_lanes: int, device: torch.device) -> None:
        self._ids = torch.zeros(num_lanes + 1, dtype=torch.int64, device=device)

    def fill_in(self, token_ids: Tensor, lanes: Tensor) -> Tensor:
        """`token_ids` (N,) with those that are `PENDING`, below 0, replaced by their lane's newest."""
        return torch.where(token_ids < 0, self._ids[lanes], token_ids)

    def put(self, lanes: Tensor, token_ids: Tensor) -> None:
        self._ids[lanes] = token_ids


def call_again(step: Step) -> Step:
    """The stand-in for a capture where there are no graphs: buckets, padding and static tensors are as
    they would be."""
    return step


class CudaCapture:
    """Records what a step launches. All graphs take their memory from one pool, for no two of them run
    at a time; record the largest first, and the others fit into what it took."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        # What happens once (allocation, compilation, choice of algorithms) must not be recorded.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = step()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay


@dataclass(frozen=True, slots=True)
class _Captured:
    """A step for B rows."""

    inputs: Tensor  # (3, B) int64: token ids, lanes, seq_lens
    rows: StepRows  # the last two of them, for the pool
    run: Step


class DecodeGraphs:
    """Runs decode-only steps. One graph for each bucket, and for each number of columns where the
    kernels ask for that; made when it is first needed, or by `prepare`."""

    def __init__(
        self,
        pool: BlockPool,
        forward: Forward,
        last_tokens: LastTokens,
        max_num_seqs: int,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._pool = pool
        self._forward = forward
        self._last_tokens = last_tokens
        self._buckets = buckets_up_to(max_num_seqs)
        self._device = device
        self._capture = capture
        self._staging = Staging(device)
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._generation = pool.generation

    def can_run(self, batch: RaggedBatch) -> bool:
        """Has every row one token?"""
        return 0 < len(batch.lanes) == batch.num_decodes <= self._buckets[-1]

    @torch.inference_mode()
    def prepare(self, seq_len: int) -> None:
        """Capture all buckets, the largest first, for rows of up to `seq_len` keys."""
        for bucket in reversed(self._buckets):
            self._step_for(bucket, self._pool.graph_columns(seq_len))

    @torch.inference_mode()
    def run(self, batch: RaggedBatch) -> Outputs:
        """The outputs of the batch's R rows, on the device.

        The next step overwrites them; what takes its turn on the stream before that may read them.
        """
        assert self.can_run(batch), "a step with a prompt in it cannot be captured"
        self._pool.update_tables(batch)
        num_rows = len(batch.lanes)
        bucket = next(each for each in self._buckets if each >= num_rows)
        num_columns = self._pool.graph_columns(int(batch.context_lens.max()) + 1)
        captured = self._step_for(bucket, num_columns)
        self._staging.send(self._inputs(batch, bucket), into=captured.inputs)
        self._pool.begin_static(captured.rows)
        return tuple(each[:num_rows] for each in captured.run())

    def _inputs(self, batch: RaggedBatch, bucket: int) -> Ints:
        """As in `_Captured`."""
        inputs = self._padding(bucket)
        inputs[:, : len(batch.lanes)] = batch.token_ids, batch.lanes, batch.context_lens + 1
        return inputs

    def _padding(self, bucket: int) -> Ints:
        """The inputs of a step without a sequence."""
        inputs = np.zeros((3, bucket), dtype=np.int64)
        inputs[1] = self._pool.trash_lane
        return inputs

    def _step_for(self, bucket: int, num_columns: int) -> _Captured:
        if self._generation != self._pool.generation:  # its tensors are elsewhere now
            self._captured.clear()
            self._generation = self._pool.generation
        key = bucket, num_columns
        if key not in self._captured:
            self._captured[key] = self._new_step(bucket, num_columns)
        return self._captured[key]

    def _new_step(self, bucket: int, num_columns: int) -> _Captured:
        # Captured while all rows are padding, so that no sequence notices the rehearsals.
        inputs = torch.from_numpy(self._padding(bucket)).to(self._device)
        token_ids, lanes, seq_lens = inputs
        rows = StepRows(DecodeRows(lanes, seq_lens, num_columns), None)

        def step() -> Outputs:
            tokens = self._last_tokens.fill_in(token_ids, lanes)
            positions = (seq_lens - 1).clamp(min=0)
            outputs = self._forward(tokens[None], positions[None])
            self._last_tokens.put(lanes, outputs[0])
            return outputs

        self._pool.begin_static(rows)
        return _Captured(inputs, rows, self._capture(step))


def buckets_up_to(max_num_seqs: int) -> Seq[int]:
    """1, 2, 4, 8, then multiples of 8: little padding for many rows, few graphs for few."""
    sizes = [1, 2, 4, *range(8, max_num_seqs + 8, 8)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]
