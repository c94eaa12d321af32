"""The least cost of a schedule: bytes moved and operations done, against the machine's ceilings
(S. Williams et al., "Roofline", CACM 52, 2009). docs/benchmarks.md says what is counted, and why the
share of a small model on a CPU can exceed 1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof.api import RowRecord, StepRecord
from batchproof.bench.hardware import Ceilings
from batchproof.models.catalogue import NUM_EXPERTS

COUNTED_LAYERS = {"full_attention", "sliding_attention"}
OTHER_KEYS = ("kv_lora_rank", "num_kv_shared_layers", "attention_chunk_size")  # of configurations
Window = int | None  # keys that a query sees at most; None: all before it


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What one forward pass of a dense decoder moves and multiplies; a multiply-add is 2 operations."""

    body_bytes: int  # all weights but embeddings and head; read by every step
    head_bytes: int  # read by a step that samples; a tied head is the whole input embedding
    embedding_bytes: int  # rows looked up for one fed token; 0 if tied
    body_flop: int  # of the linear layers, for one fed token
    head_flop: int  # for one sampled row
    kv_bytes: int  # keys and values of one token in one layer
    pair_flop: int  # for one (query, key) pair in one layer: scores, and the sum over values
    num_layers: tuple[tuple[Window, int], ...]  # (window, number of layers with it)

    @property
    def kv_bytes_per_token(self) -> int:
        return self.kv_bytes * sum(num for _, num in self.num_layers)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Returns the costs; None for a model whose work is not counted."""
        if not _is_counted(model):
            return None
        weights: list[Any] = [
            module.weight for module in model.modules() if isinstance(module, nn.Linear | Conv1D)
        ]
        tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
        known = {id(each) for each in (*weights, *tables)}
        if any(each.dim() > 1 and id(each) not in known for each in model.parameters()):
            return None  # a matrix is in no linear layer
        config = model.config.get_text_config()
        num_heads: int = config.num_attention_heads
        head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        num_kv_heads: int = getattr(config, "num_key_value_heads", None) or num_heads
        head = model.get_output_embeddings().weight
        untied = [table for table in tables if table is not head]
        apart = {id(each) for each in (head, *tables)}
        return cls(
            body_bytes=sum(each.nbytes for each in model.parameters() if id(each) not in apart),
            head_bytes=head.nbytes,
            embedding_bytes=sum(table.nbytes // len(table) for table in untied),
            body_flop=2 * sum(weight.numel() for weight in weights if weight is not head),
            head_flop=2 * head.numel(),
            kv_bytes=2 * num_kv_heads * head_dim * model.dtype.itemsize,
            pair_flop=4 * num_heads * head_dim,
            num_layers=tuple(Counter(_windows(config)).items()),
        )


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a trace in seconds, and what it is made of."""

    least_s: float
    bytes: int
    flop: int
    bound: str  # "memory" or "compute": the larger part of that time


def least_time(trace: Sequence[StepRecord], costs: ModelCosts, ceilings: Ceilings) -> Roofline:
    """Returns the sum over the steps. Padding and idle slots, in no trace, count as loss."""
    held_s = {"memory": 0.0, "compute": 0.0}
    total_bytes = total_flop = 0
    for record in trace:
        step_bytes, step_flop = step_costs(record.rows, costs)
        memory_s = step_bytes / ceilings.bytes_per_s
        compute_s = step_flop / ceilings.matmul_flop_per_s
        held_s["memory" if memory_s >= compute_s else "compute"] += max(memory_s, compute_s)
        total_bytes += step_bytes
        total_flop += step_flop
    bound = max(held_s, key=held_s.__getitem__)
    return Roofline(sum(held_s.values()), total_bytes, total_flop, bound)


def step_costs(rows: Sequence[RowRecord], costs: ModelCosts) -> tuple[int, int]:
    """Returns the bytes and operations of one forward pass over these rows."""
    num_fed = sum(row.query_len for row in rows)
    num_sampled = sum(row.is_sampled for row in rows)
    num_read = num_pairs = 0  # keys read and pairs scored, in all layers
    for window, num_layers in costs.num_layers:
        num_read += num_layers * sum(num_keys(row, window) for row in rows)
        num_pairs += num_layers * sum(pairs(row, window) for row in rows)
    num_bytes = (
        costs.body_bytes
        + costs.head_bytes * bool(num_sampled)
        + costs.embedding_bytes * num_fed
        + costs.kv_bytes * num_read
        + costs.kv_bytes_per_token * num_fed  # written
    )
    flop = costs.body_flop * num_fed + costs.head_flop * num_sampled + costs.pair_flop * num_pairs
    return num_bytes, flop


def num_keys(row: RowRecord, window: Window) -> int:
    """Returns the number of keys that at least one query of the row sees, its own included."""
    seq_len = row.context_len + row.query_len
    return seq_len if window is None else min(seq_len, window + row.query_len - 1)


def pairs(row: RowRecord, window: Window) -> int:
    """Returns the number of (query, key) pairs under the causal mask, where the query at position p
    sees p + 1 keys, or `window` if that is fewer."""
    context, queries = row.context_len, row.query_len
    growing = queries if window is None else max(0, min(queries, window - context))
    full = 0 if window is None else (queries - growing) * window  # those whose window is full
    return growing * context + growing * (growing + 1) // 2 + full


def _is_counted(model: PreTrainedModel) -> bool:
    """Returns whether the counts hold for a model whose matrices are all in linear layers.

    They do not for a mixture of experts, whose tokens decide what is read; for a state other than keys
    and values; and for keys and values that are not one pair per layer, head and token.
    """
    config = model.config.get_text_config()
    other_layers = set(getattr(config, "layer_types", None) or ()) - COUNTED_LAYERS
    return not (
        any((getattr(config, name, None) or 0) > 1 for name in NUM_EXPERTS)
        or other_layers
        or getattr(model, "_is_stateful", False)
        or any(getattr(config, name, None) for name in OTHER_KEYS)
        or model.get_output_embeddings() is None
    )


def _windows(config: Any) -> list[Window]:
    window: Window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in layer_types]
