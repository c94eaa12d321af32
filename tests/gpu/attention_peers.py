"""The share of the memory ceiling that others' decode attention reaches at the crowds of `attention`.

python -m tests.gpu.attention_peers cuda measures.jsonl

* torch's scaled_dot_product_attention (`enable_gqa`), whose keys lie in one piece: it reads no table;
* FlashInfer's decode over the same blocks and table, on CUDA cores and on tensor cores, if it is
  installed.

Neither writes the key and value of the step. Each is compared with plain float32 before it is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from batchproof.bench.ceilings import measure_ceilings
from batchproof_paged.kernels import LayerCache
from tests.gpu.attention import BLOCK_SIZE, CROWDS, FEW, UNEVEN, Crowd
from tests.gpu.ceilings import DTYPE, SERVED
from tests.gpu.measures import Measures, measured
from tests.gpu.timing import recorded, seconds_of

Attend = Callable[[LayerCache], Tensor]  # returns (num_seqs, num_heads, head_dim)
WORKSPACE_BYTES = 128 << 20  # what FlashInfer recommends
NUM_COMPARED = 4  # sequences
MOST_OFF = 0.02  # of the largest value: four times what bfloat16 explains, less than a wrong table


def measure(device: torch.device, measures: Measures) -> None:
    ceiling = measure_ceilings(device, DTYPE).bytes_per_s
    is_cuda = device.type == "cuda"
    ways = {f"torch {each.name}": partial(torch_attention, each) for each in torch_backends(is_cuda)}
    try:
        import flashinfer

        cores = {"CUDA cores": False, "tensor cores": True}
        ways |= {
            f"flashinfer on {k}": partial(flashinfer_attention, flashinfer, v) for k, v in cores.items()
        }
        measures.add("flashinfer", flashinfer.__version__)
    except Exception as error:  # some releases fail otherwise than by ImportError
        measures.add("flashinfer", f"not measured: {type(error).__name__}: {error}")
    even = [each for each in CROWDS if each not in UNEVEN] if is_cuda else FEW[:1]
    for sizes, shape in product(even, SERVED if is_cuda else ("tiny",)):
        name = f"{shape} attention of others, {sizes}"
        with measures.piece(name):
            _measure_crowd(name, Crowd(shape, sizes, device), ways, ceiling, device, measures)


def _measure_crowd(
    name: str,
    crowd: Crowd,
    ways: dict[str, Callable[[Crowd], tuple[Attend, Tensor]]],
    ceiling: float,
    device: torch.device,
    measures: Measures,
) -> None:
    seconds, failed = {}, {}
    for way, build in ways.items():
        if measures.left_s < 5:
            break
        try:
            attend, cells = build(crowd)
            compare(crowd, attend(crowd.layers[0]), cells)
            everything = recorded(lambda attend=attend: [attend(each) for each in crowd.layers], device)
            took_s = seconds_of(everything, device, num_calls=5, num_rounds=3)
            seconds[way] = took_s / len(crowd.layers)
        except Exception as error:  # a backend that does not serve this shape
            failed[way] = f"{type(error).__name__}: {str(error)[:80]}"
    shares = {way: crowd.num_bytes / each / ceiling for way, each in seconds.items()}
    found = [f"{share:.0%} {way}" for way, share in sorted(shares.items(), key=lambda each: -each[1])]
    summary = "of the memory ceiling: " + ("; ".join(found) or "none measured")
    measures.add(name, summary, seconds=seconds, share_of_memory=shares, failed=failed)


def compare(crowd: Crowd, got: Tensor, cells: Tensor) -> None:
    """Raises `ArithmeticError` if `got` is no attention to the first layer's cells, (num_seqs,
    seq_len)."""
    layer, num = crowd.layers[0], NUM_COMPARED
    keys, values = (
        each.flatten(0, 1)[cells[:num]].transpose(1, 2).float() for each in (layer.keys, layer.values)
    )
    query = crowd.query[:num, :, None].float()
    with sdpa_kernel(SDPBackend.MATH):
        expected = scaled_dot_product_attention(
            query, keys, values, scale=crowd.form.scaling, enable_gqa=True
        )
    off = ((got[:num].float() - expected[:, :, 0]).abs().max() / expected.abs().max()).item()
    if not off <= MOST_OFF:
        raise ArithmeticError(f"off by {off:.2g} of the largest value")


def torch_backends(is_cuda: bool) -> tuple[SDPBackend, ...]:
    return (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)[: 1 + is_cuda]


def torch_attention(backend: SDPBackend, crowd: Crowd) -> tuple[Attend, Tensor]:
    """Returns attention by torch to the blocks in their order in memory, and the cells it reads."""
    num_seqs, seq_len = len(crowd.query), int(crowd.rows.seq_lens[0])
    per_seq = -(-seq_len // BLOCK_SIZE) * BLOCK_SIZE

    def of_sequences(cells: Tensor) -> Tensor:
        """Returns (num_seqs, num_kv_heads, seq_len, head_dim) without a copy."""
        rows = cells.flatten(0, 1)[BLOCK_SIZE:].unflatten(0, (num_seqs, per_seq))
        return rows[:, :seq_len].transpose(1, 2)

    def attend(layer: LayerCache) -> Tensor:
        given = (crowd.query[:, :, None], of_sequences(layer.keys), of_sequences(layer.values))
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(*given, scale=crowd.form.scaling, enable_gqa=True)
        return out[:, :, 0]

    cells = torch.arange(BLOCK_SIZE, BLOCK_SIZE + num_seqs * per_seq, device=crowd.query.device)
    return attend, cells.view(num_seqs, per_seq)[:, :seq_len]


def flashinfer_attention(library: Any, has_tensor_cores: bool, crowd: Crowd) -> tuple[Attend, Tensor]:
    """Returns attention by FlashInfer to the blocks that the tables name, and the cells it reads."""
    query, seq_len = crowd.query, int(crowd.rows.seq_lens[0])
    num_seqs, num_heads, dim = query.shape
    tables = crowd.tables[:num_seqs]
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device),
        use_tensor_cores=has_tensor_cores,
    )
    bounds = torch.arange(num_seqs + 1, dtype=torch.int32) * tables.shape[1]
    last = torch.full((num_seqs,), (seq_len - 1) % BLOCK_SIZE + 1, dtype=torch.int32)
    num_kv_heads = crowd.layers[0].keys.shape[2]
    wrapper.plan(
        *(bounds, tables.flatten(), last, num_heads, num_kv_heads, dim, BLOCK_SIZE),
        q_data_type=DTYPE,
        sm_scale=crowd.form.scaling,
    )
    cells = (tables.long() * BLOCK_SIZE)[..., None] + torch.arange(BLOCK_SIZE, device=query.device)
    out = torch.empty_like(query)
    return (
        lambda layer: wrapper.run(query, (layer.keys, layer.values), out=out),
        cells.flatten(1)[:, :seq_len],
    )


if __name__ == "__main__":
    sys.exit(measured(__doc__, "attention of others", measure))
