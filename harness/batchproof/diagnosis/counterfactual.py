"""Runs the reference as an engine fed it, with a mistake: what it would then answer.

Every token that an engine fed is a cell of one table, made from its trace or, without one, from the
simplest schedule that the limits allow. A mistake changes a copy: another token, another position,
another set of visible keys. It is named only if the reference, making it, gives the engine's answer.

One float64 pass covers all cells, without a cache. Which key a query sees is a mask over cells, so that
chunks, batches, leaks and former tenants need no special treatment.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from batchproof.api import Completion, EngineConfig, Request, RowRecord, StepRecord
from batchproof.decoding.adapters import low_rank
from batchproof.findings.causes import Cause
from batchproof.models.adapted_tokens import AS_ASKED, Adapting, adapted
from batchproof.models.catalogue import ModelUnderTest, moved
from batchproof.workload.workloads import Workload


@dataclass(frozen=True, slots=True)
class FedSequence:
    """One request of one call: its prompt and the engine's outputs."""

    request: Request
    call: int
    token_ids: tuple[int, ...]
    variant: int = 0  # of the model: the number of the request's adapter

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
        return len(self.seq)

    def num_prompt_tokens(self) -> Tensor:
        """Returns the prompt length of each cell's sequence, `(num_cells,)`."""
        return torch.tensor([fed.num_prompt_tokens for fed in self.sequences])[self.seq]

    def variant(self) -> Tensor:
        """Returns the number of the adapter of each cell's sequence, 0 for none, `(num_cells,)`."""
        return torch.tensor([fed.variant for fed in self.sequences])[self.seq]

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
        """Returns whether the key is cached, or fed in the query's step, bool `(query, key)`."""
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
                sequences.append(FedSequence(request, call, tokens, workload.variant_of(request)))
        num_outputs = dict.fromkeys(numbers.values(), 0)
        epochs = dict.fromkeys(numbers.values(), 0)
        for record, is_reused in _with_reused_keys(trace, workload.config.prefix_caching):
            for request_id in record.preempted:
                if request_id in numbers:
                    epochs[numbers[request_id]] += 1
            packed = 0
            for number, row in enumerate(record.rows):
                seq = numbers.get(row.request_id)
                num_kept = row.cached_len - row.context_len  # without rejected drafts
                if seq is None or row.cached_len > len(sequences[seq].token_ids):
                    return None
                for offset in range(num_kept):
                    index = row.context_len + offset
                    token = sequences[seq].token_ids[index]
                    lens = (row.context_len, row.query_len)
                    cell = (seq, index, token, step, number, packed, epochs[seq], *lens, is_reused)
                    cells.append(cell)
                    packed += 1
                for cell_at in range(len(cells) - row.num_sampled, len(cells)):
                    samples.append(Sample(cell_at, seq, num_outputs[seq]))
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


FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers, as transformers names them


@dataclass(frozen=True, slots=True)
class Edit:
    """What is done to the model while it computes these cells, bool per cell."""

    cells: Tensor
    during: Callable[[PreTrainedModel, Tensor], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class View:
    """What is fed in the pass, and what is read from it: the right computation, or with a mistake."""

    token: Tensor  # per cell
    position: Tensor  # per cell
    visible: Tensor  # bool (query cell, key cell)
    samples: Tensor  # the cells whose logits are wanted
    variant: Tensor  # per cell: the number of the adapter under which it is computed, 0 for none
    adapting: Adapting = AS_ASKED
    # By kind of layer: which of these keys it sees. Kinds that are not named see all.
    within: Mapping[str, Tensor] = field(default_factory=dict)
    edit: Edit | None = None
    logits_dtype: torch.dtype | None = None

    def grown(self, within: Tensor) -> Tensor:
        """Returns the mask with pads as keys within; a mistake may have added some behind the cells."""
        num = len(self.visible) - len(within)
        return pad(within, (0, num, 0, num), value=True)

    def seen_by(self, kind: str) -> Tensor:
        within = self.within.get(kind)
        return self.visible if within is None else self.visible & self.grown(within)

    def is_same(self, other: Self) -> bool:
        """Returns whether nothing differs, so that the mistake cannot show on this table."""
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return all(
            a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b))
            for a, b in pairs
        )


def honest_view(table: CellTable, samples: Tensor, window: int | None, kinds: Collection[str]) -> View:
    """Returns the right computation, whose logits are those of the cells `samples`, `(n,)`. Of layers
    of several kinds, only those that slide have the window."""
    is_mixed = len(kinds) > 1 and window is not None
    visible = table.own_keys(None if is_mixed else window)
    view = View(table.token, table.index, visible, samples, table.variant())
    return replace(view, within={SLIDING: table.in_window(window)}) if is_mixed else view


@torch.inference_mode()
def logits_of(subject: ModelUnderTest, view: View, dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns float64 logits `(samples, vocab)` on the CPU, computed in `dtype`."""
    view = _pruned(view)
    model = subject.exact
    if dtype is not torch.float64:
        model = moved(copy.deepcopy(model), model.device, dtype)
    arguments: dict[str, Any] = {
        "input_ids": view.token[None].to(model.device),
        "position_ids": view.position.clamp(0, subject.context_len - 1)[None].to(model.device),
        "attention_mask": _mask(model, view.visible),
    }
    if len(subject.layer_kinds) > 1:
        seen = {kind: view.seen_by(kind) for kind in subject.layer_kinds}
        arguments["attention_mask"] = {kind: _mask(model, mask) for kind, mask in seen.items()}
    low_rank_of = partial(low_rank, subject.model)
    with ExitStack() as stack:
        stack.enter_context(adapted(model, view.variant, view.adapting, low_rank_of))
        if view.edit is not None:
            stack.enter_context(view.edit.during(model, view.edit.cells))
        logits: Tensor = model(**arguments, use_cache=False).logits[0].cpu()[view.samples].double()
    return logits if view.logits_dtype is None else logits.to(view.logits_dtype).double()


def _mask(model: PreTrainedModel, visible: Tensor) -> Tensor:
    """Returns the mask in the form that the model's attention takes, (1, 1, queries, keys). SDPA
    returns zeros for a query that sees nothing."""
    visible = visible[None, None].to(model.device)
    if model.config._attn_implementation == "sdpa":
        return visible
    bias = torch.zeros(visible.shape, dtype=model.dtype, device=model.device)
    return bias.masked_fill_(~visible, torch.finfo(model.dtype).min)


def _pruned(view: View) -> View:
    """Returns the view without the cells that no sampled cell depends on."""
    needed = torch.zeros(len(view.token), dtype=torch.bool)
    needed[view.samples] = True
    while True:
        more = needed | view.visible[needed].any(dim=0)
        if torch.equal(more, needed):
            break
        needed = more
    place = needed.cumsum(0) - 1
    return replace(
        view,
        token=view.token[needed],
        variant=pad(view.variant, (0, len(needed) - len(view.variant)))[needed],  # pads have none
        position=view.position[needed],
        visible=view.visible[needed][:, needed],
        samples=place[view.samples],
        within={kind: view.grown(each)[needed][:, needed] for kind, each in view.within.items()},
        edit=view.edit and replace(view.edit, cells=view.edit.cells[needed]),
    )


# At which steps a mistake is made: "all", those from the first wrong output on ("later"), that "one";
# and the float64 logits `(n, vocab)` that it gives.
Predictions = Iterator[tuple[str, Tensor]]
PICKS = ("first", "last", "longest", "shortest")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A cause, in words an engineer can act on, and what is computed under it."""

    cause: Cause
    text: str
    view: View
    is_rounding: bool = False  # compared by size, since rounding depends on the order of sums


@dataclass(frozen=True, slots=True)
class Suspect:
    """The answer to explain: sequence `seq` of the table, and the right view of it."""

    table: CellTable
    seq: int
    honest: View
    window: int | None
    config: EngineConfig
    is_continuous: bool  # continuous batching, by its capabilities: no padded waves

    @property
    def is_own(self) -> Tensor:
        """Whether each cell is of this sequence, bool `(num_cells,)`."""
        return self.table.seq == self.seq

    def mistake(self, cause: Cause, text: str, **changes: Any) -> Mistake:
        return Mistake(cause, text, replace(self.honest, **changes))


def of_picked_row(table: CellTable, column: Tensor, pick: str) -> Tensor:
    """Returns for each cell `column` of one row of its step, picked as in `PICKS`, `(num_cells,)`."""
    found = torch.zeros_like(column)
    for step in table.step.unique():
        here = table.step == step
        rows, values = table.row[here], column[here]
        found[here] = {
            "first": values[rows.argmin()],
            "last": values[rows.argmax()],
            "longest": values.max(),
            "shortest": values.min(),
        }[pick]
    return found


def of_row_numbers(table: CellTable) -> Tensor:
    """Returns for each cell the context length that its row has where lengths are kept by the number of
    a row, and no row moves up when a request has left, `(num_cells,)`."""
    kept: dict[int, int] = {}
    found = table.context_len.clone()
    columns = (table.row, table.index, table.context_len, table.query_len)
    for cell, (row, index, context, num) in enumerate(torch.stack(columns, 1).tolist()):
        if index == context:  # the first cell of its row in this step
            start = kept.get(row, context) if context else 0
            kept[row] = start + num
        found[cell] = start
    return found
