"""Steps without the host's work: launched once, captured, and replayed.

A captured step reads its input from a tensor that never moves. It has room for so many decode rows and
so many prompt tokens, a `Layout`, of which there are few; a smaller step is filled up with padding,
which belongs to the trash lane: it has no keys to read, writes to the trash block and chooses its
tokens for that lane. Nothing in a captured step may depend on a value that the host knows.

    [ decode rows, padding | prompt tokens of all prefill rows end to end, padding ]
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.kernels import DecodeRows, PrefillRows, StepRows
from batchproof_paged.rows import Rows
from batchproof_paged.staging import Staging

Outputs = tuple[Tensor, ...]  # the chosen token ids (S,) and, if they are wanted, logits (S, vocab)
Forward = Callable[[Tensor, Tensor, Tensor], Outputs]  # ids, positions (1, T), sampled places (S,)
Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]

REPLAYED = "steps replayed"  # a counter
MOST_PROMPT_TOKENS = 2048
# About what a GPU does while the host launches a pass, or a layer of it: a longer step hides the host's
# work, and padding would cost more than a replay saves.
WORTH_CAPTURING_FLOPS, WORTH_CAPTURING_FLOPS_PER_LAYER = 4e12, 3e11
FREE_FLOPS = 1e11  # of padding: a fraction of a millisecond of a GPU
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


class Layout(NamedTuple):
    """What a captured step has room for."""

    num_decodes: int  # D
    num_prompt_tokens: int  # N; 0: decodes alone
    num_columns: int  # of the block tables


class _Captured(NamedTuple):
    inputs: Tensor  # int64: what `_inputs` makes, end to end
    rows: StepRows  # views of it, for the pool
    run: Step


class CapturedSteps:
    """One captured step for each layout; made when it is first needed, or by `prepare`."""

    def __init__(
        self,
        pool: BlockPool,
        forward: Forward,
        last_tokens: LastTokens,
        buckets: tuple[Seq[int], Seq[int]],
        capture: Capture,
        forget: Callable[[], None],
    ) -> None:
        """`buckets` are the numbers of decode rows and of prompt tokens, ascending. `forget` is called
        when all that was captured is void."""
        self._pool = pool
        self._forward = forward
        self._last_tokens = last_tokens
        self._decodes, self._prompts = buckets
        self._capture, self._forget = capture, forget
        self._staging = Staging(last_tokens._ids.device)
        self._captured: dict[Layout, _Captured] = {}
        self._generation = pool.generation
        self._places: list[int] = []  # of the model's weights
        self.num_replayed = 0  # steps

    def can_run(self, batch: RaggedBatch) -> bool:
        """Is there room for it, and is at most one token chosen behind each row?"""
        has_room = batch.num_prompt_tokens <= self._prompts[-1]
        return len(batch.lanes) > 0 and has_room and not (batch.has_drafts or batch.scored_rows)

    @torch.inference_mode()
    def prepare(self, seq_len: int) -> None:
        """Captures all layouts, the largest first, for rows of up to `seq_len` keys."""
        sizes = [(num, 0) for num in self._decodes]
        sizes += [(rows, num) for num in self._prompts for rows in (0, self._decodes[-1])]
        for size in sorted(sizes, key=sum, reverse=True):
            self._step_for(Layout(*size, self._pool.graph_columns(seq_len)))

    def _layout_of(self, batch: RaggedBatch) -> Layout:
        num_decodes, num_prompt_tokens = batch.num_decodes, batch.num_prompt_tokens
        if num_prompt_tokens:
            num_decodes = self._decodes[-1] if num_decodes else 0
            num_prompt_tokens = _at_least(self._prompts, num_prompt_tokens)
        else:
            num_decodes = _at_least(self._decodes, num_decodes)
        num_columns = self._pool.graph_columns(int(batch.seq_lens.max()))
        return Layout(num_decodes, num_prompt_tokens, num_columns)

    @torch.inference_mode()
    def run(self, batch: RaggedBatch) -> Outputs:
        """The outputs of the batch's S sampled rows, on the device.

        The next step overwrites them; what takes its turn on the stream before that may read them.
        """
        assert self.can_run(batch), "there is no captured step for it"
        self._pool.update_tables(batch)
        layout = self._layout_of(batch)
        captured = self._step_for(layout)
        self._staging.send(*self._inputs(layout, batch), into=captured.inputs)
        self._pool.begin_static(captured.rows)
        outputs = captured.run()
        self.num_replayed += 1
        num_sampled = len(batch.sampled_rows)
        if not layout.num_prompt_tokens and num_sampled < len(batch.lanes):
            # A prompt's chunk of one token, which is not sampled, passes for a decode.
            (rows,) = self._staging.send(batch.sampled_rows)
            return tuple(each[rows] for each in outputs)
        return tuple(each[:num_sampled] for each in outputs)

    def _inputs(self, layout: Layout, batch: RaggedBatch) -> list[Ints]:
        """Token ids (D,) and (N,), lanes and seq_lens of decodes (D,), and where there is room for
        prompts: their positions and slots (N,), lanes and context_lens (P,) and starts (P + 1,), the
        sampled places (S,) and their lanes (S,). P and S are the number of lanes."""
        d, n, p = layout.num_decodes, layout.num_prompt_tokens, self._pool.trash_lane
        num, trash, ids = batch.num_decodes, self._pool.trash_lane, batch.token_ids
        inputs = [
            _filled(d, 0, ids[:num]),
            _filled(n, 0, ids[num:]),
            _filled(d, trash, batch.lanes[:num]),
            _filled(d, 0, batch.seq_lens[:num]),
        ]
        if not n:
            return inputs
        moved = d - num  # the first prompt begins behind the padding
        starts = batch.cu_seqlens_q[num:] + moved
        return [
            *inputs,
            _filled(n, 0, batch.position_ids[num:]),
            _filled(n, 0, self._pool.slots_of(batch, num)),
            _filled(p, trash, batch.lanes[num:]),
            _filled(p, 0, batch.context_lens[num:]),
            _filled(p + 1, starts[-1], starts),
            _filled(p, 0, batch.sampled_tokens + moved * (batch.sampled_rows >= num)),
            _filled(p, trash, batch.lanes[batch.sampled_rows]),
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

    def _step_for(self, layout: Layout) -> _Captured:
        if self._generation != self._pool.generation:  # its tensors are elsewhere now
            self._forget_all()
            self._generation = self._pool.generation
        if layout not in self._captured:
            self._captured[layout] = self._new_step(layout)
        return self._captured[layout]

    def _new_step(self, layout: Layout) -> _Captured:
        # Captured while all rows are padding, so that no sequence notices the rehearsals.
        arrays = self._inputs(layout, RaggedBatch.of(Rows.of(())))
        inputs = torch.from_numpy(np.concatenate(arrays)).to(self._last_tokens._ids.device)
        token_ids, prompt_ids, lanes, seq_lens, *rest = inputs.split([len(each) for each in arrays])
        decodes = DecodeRows(lanes, seq_lens, layout.num_columns) if layout.num_decodes else None
        prefills, prompt_positions = None, prompt_ids  # none
        last, sampled_lanes = torch.arange(layout.num_decodes, device=inputs.device), lanes
        if rest:
            prompt_positions, slots, rows, context_lens, starts, last, sampled_lanes = rest
            prefills = PrefillRows(rows, context_lens, starts, layout.num_columns, slots, None)
        # No step may hold on to this object: an engine that is dropped gives its memory back at once.
        last_tokens, forward = self._last_tokens, self._forward

        def step() -> Outputs:
            tokens = last_tokens.fill_in(token_ids, lanes)
            positions = (seq_lens - 1).clamp_(min=0)
            if prefills is not None:
                tokens = torch.cat([tokens, prompt_ids])
                positions = torch.cat([positions, prompt_positions])
            outputs = forward(tokens[None], positions[None], last)
            last_tokens.put(sampled_lanes, outputs[0])
            return outputs

        step_rows = StepRows(decodes, prefills)
        self._pool.begin_static(step_rows)
        return _Captured(inputs, step_rows, self._capture(step))


def decode_buckets(most: int, least: int = 1) -> Seq[int]:
    """Returns 1, 2, 4, 8, then multiples of 8: little padding for many rows, few graphs for few."""
    sizes = [1, 2, 4, *range(8, most + 8, 8)]
    return [size for size in sizes if least <= size < most] + [most]


def prompt_buckets(model: PreTrainedModel, most: int) -> Seq[int]:
    """Returns up to `most` tokens, as far as they are worth capturing: 16, 32, ... 256, then multiples
    of 256; powers of 4 as long as padding costs nothing that matters."""
    flops = 2 * model.num_parameters()
    num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", 1)
    worth = max(WORTH_CAPTURING_FLOPS, num_layers * WORTH_CAPTURING_FLOPS_PER_LAYER)
    most = min(most, max(16, min(MOST_PROMPT_TOKENS, int(worth / flops))))
    sizes = [16]
    while (size := sizes[-1]) < most:
        sizes.append(4 * size if 3 * size * flops <= FREE_FLOPS else size + min(size, 256))
    return [size for size in sizes if size < most] + [most]


def _at_least(buckets: Seq[int], size: int) -> int:
    return buckets[bisect_left(buckets, size)]


def _filled(size: int, padding: int, values: Ints) -> Ints:
    """(size,) `values`, then padding."""
    if len(values) == size:
        return values
    filled = np.full(size, padding, dtype=np.int64)
    filled[: len(values)] = values
    return filled
