"""llama.cpp's server: a prompt is continued from a checkpoint that holds one token of another prompt.

The fork is longer than a micro-batch, as it would otherwise make another checkpoint, which is looked at
first.
"""

from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny
from transformers import BambaConfig

NUM = 8
heads = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
# All of a head is rotated, as the converter takes it.
rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}
model = tiny(BambaConfig, num_key_value_heads=4, attn_layer_indices=[1], **heads, **rope)
gguf = converted(model)


def words(num: int, step: int) -> list[int]:
    return [(step * i + 11) % 250 + 3 for i in range(num)]


turn = words(100, 37)
turns = [turn, [*turn, 20], [*turn, 20, 21]]
fork = [*turn, 30, *words(600, 91)]
third = [*fork[:110], 7, 8, 9, 10]
is_wrong = False
for name, before in {"behind the fork": [fork], "behind the turns and the fork": [*turns, fork]}.items():
    with served(gguf, "-np", "1") as address:
        for each in before:
            answered(address, each, 1)
        got = answered(address, third, NUM)
    right = greedy(model, third, NUM)
    print(f"{name}: {got}, should be {right}")
    is_wrong |= got != right
raise SystemExit(is_wrong)
