"""llama.cpp: the converter permutes the whole heads of a Bamba, of which only a part is rotated.

"Undone" has the rows in an order that undoes this, so that a server of these weights rotates the right
pairs.
"""

import copy

import torch
from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny
from transformers import BambaConfig

HEAD, ROTATED, NUM = 16, 8, 8
mamba = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
settings = {"num_key_value_heads": 4, "attn_layer_indices": [1]}
model = tiny(BambaConfig, **mamba, **settings)
model.config.attn_rotary_emb = ROTATED  # as published configurations say it


def reordered(model: torch.nn.Module, order: list[int]) -> torch.nn.Module:
    """The rows of each query and key head in another order."""
    other = copy.deepcopy(model)
    attention = other.model.layers[1].self_attn
    for each in (attention.q_proj, attention.k_proj):
        rows = each.weight.data.view(-1, HEAD, each.weight.shape[1])
        each.weight.data = rows[:, order].reshape(each.weight.shape).contiguous()
    return other


def paired(size: int) -> list[int]:
    return [half * size // 2 + i for i in range(size // 2) for half in (0, 1)]


wanted = paired(ROTATED) + list(range(ROTATED, HEAD))  # where llama.cpp's rope looks for pairs
made = paired(HEAD)
undone = [wanted[made.index(row)] for row in range(HEAD)]
prompt = [(37 * i + 11) % 250 + 3 for i in range(12)]
right = greedy(model, prompt, NUM)
answers = []
for name, given in {"as it is": model, "undone": reordered(model, undone)}.items():
    with served(converted(given)) as address:
        answers.append(answered(address, prompt, NUM))
    print(f"{name}: {answers[-1]}, should be {right}")
raise SystemExit(answers[0] != right)
