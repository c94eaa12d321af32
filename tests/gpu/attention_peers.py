"""The share of the memory ceiling that the decode attention of others reaches on even crowds.

python -m tests.gpu.attention_peers cuda measures.jsonl

* torch's scaled_dot_product_attention (`enable_gqa`), whose keys lie in one piece: it reads no table;
* FlashInfer's decode over the same blocks and table, if it is installed.

Neither writes the key and value of the step. Each is compared with plain float32 before it is timed.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import product

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from batchproof_paged.kernels import LayerCache
from batchproof_paged.torch_kernels import attend_dense
from tests.gpu.attention import BLOCK_SIZE, DTYPE, EVEN, FEW, SERVED, Crowd, recorded, seconds_of
from tests.gpu.measures import Measures, measured

Attend = Callable[[LayerCache], Tensor]  # returns (num_seqs, num_heads, head_dim)
Peer = Callable[[Crowd], tuple[Attend, Tensor]]  # returns the cells that are read as well
WORKSPACE_BYTES = 128 << 20  # what FlashInfer recommends
NUM_COMPARED = 4  # sequences
MOST_OFF = 0.02  # of the largest value: four times what bfloat16 explains, less than a wrong table


def measure(device: torch.device, measures: Measures) -> None:
    ceiling = measures.ceilings(device, DTYPE).bytes_per_s
    is_cuda = device.type == "cuda"
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION][: 1 + is_cuda]
    peers: dict[str, Peer] = {f"torch {each.name}": partial(torch_attention, each) for each in backends}
    for cores, has_tensor_cores in {"CUDA cores": False, "tensor cores": True}.items():
        peers[f"flashinfer on {cores}"] = partial(flashinfer_attention, has_tensor_cores)
    for sizes, shape in product(EVEN if is_cuda else FEW[:1], SERVED if is_cuda else ("tiny",)):
        name = f"{shape} attention of others, {sizes}"
        with measures.piece(name):
            crowd, shares, failed = Crowd(shape, sizes, device), {}, {}
            for peer, build in peers.items():
                try:
                    assert measures.left_s > 5, "no time left"
                    shares[peer] = crowd.num_bytes / layer_s(crowd, *build(crowd)) / ceiling
                except Exception as error:  # it is not installed, or does not serve this shape
                    failed[peer] = f"{type(error).__name__}: {str(error)[:80]}"
            found = "; ".join(f"{share:.0%} {peer}" for peer, share in shares.items())
            summary = f"of the memory ceiling: {found or 'none measured'}"
            measures.add(name, summary, share_of_memory=shares, failed=failed)


def layer_s(crowd: Crowd, attend: Attend, cells: Tensor) -> float:
    """Returns the duration of one layer in seconds. Raises `ArithmeticError` if the result for the
    first one is no attention to these cells, (num_seqs, seq_len)."""
    layer, compared, device = crowd.layers[0], slice(NUM_COMPARED), crowd.query.device
    keys, values = (
        each.flatten(0, 1)[cells[compared]].transpose(1, 2).float()
        for each in (layer.keys, layer.values)
    )
    query = crowd.query[compared, :, None].float()
    right = attend_dense(query, keys, values, crowd.form, None, is_causal=False)[:, :, 0]
    off = float((attend(layer)[compared].float() - right).abs().max() / right.abs().max())
    if not off <= MOST_OFF:
        raise ArithmeticError(f"off by {off:.2g} of the largest value")
    everything = recorded(lambda: [attend(each) for each in crowd.layers], device)
    return seconds_of(everything, device, num_calls=5, num_rounds=3) / len(crowd.layers)


def torch_attention(backend: SDPBackend, crowd: Crowd) -> tuple[Attend, Tensor]:
    """Attends by torch to the blocks in their order in memory."""
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


def flashinfer_attention(has_tensor_cores: bool, crowd: Crowd) -> tuple[Attend, Tensor]:
    """Attends by FlashInfer to the blocks that the tables name."""
    query, seq_len, device = crowd.query, int(crowd.rows.seq_lens[0]), crowd.query.device
    num_seqs, num_heads, dim = query.shape
    tables, num_kv_heads = crowd.tables[:num_seqs], crowd.layers[0].keys.shape[2]
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device),
        use_tensor_cores=has_tensor_cores,
    )
    bounds = torch.arange(num_seqs + 1, dtype=torch.int32) * tables.shape[1]
    last = torch.full((num_seqs,), (seq_len - 1) % BLOCK_SIZE + 1, dtype=torch.int32)
    wrapper.plan(
        *(bounds, tables.flatten(), last, num_heads, num_kv_heads, dim, BLOCK_SIZE),
        q_data_type=DTYPE,
        sm_scale=crowd.form.scaling,
    )
    cells = (tables.long() * BLOCK_SIZE)[..., None] + torch.arange(BLOCK_SIZE, device=device)
    out = torch.empty_like(query)
    return (
        lambda layer: wrapper.run(query, (layer.keys, layer.values), out=out),
        cells.flatten(1)[:, :seq_len],
    )


if __name__ == "__main__":
    sys.exit(measured(__doc__, "attention of others", measure))
