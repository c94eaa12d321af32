"""llama.cpp's server: a prompt that follows another in its slot is continued from that one's state.

Exit status 1: reproduced. Of models with recurrent states a slot keeps checkpoints, the first after all
but four tokens of a prompt: after one, if it has five. The next prompt erases those with
pos_max > pos_next; if it has another first token, pos_next is 0, and so is the pos_max of that
checkpoint. A third prompt that shares its beginning with the second goes on from there. All of it is in
`update_slots` of tools/server/server-context.cpp.
"""

import sys

from setup_greedy import greedy
from setup_llama import answered, converted, served, tiny
from transformers import BambaConfig

NUM = 8
heads = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
# All of a head is rotated, as the converter takes it.
rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}
model = tiny(BambaConfig, intermediate_size=128, num_key_value_heads=4, attn_layer_indices=[1], **heads, **rope)
gguf = converted(model, "bamba")
first = [200, 11, 12, 13, 14]
second = [(37 * i + 11) % 250 + 3 for i in range(20)]
third = second[:6] + [7, 8, 9, 10, 11, 12]
is_wrong = False
for name, before in {"alone": [], "behind the second": [second], "behind both": [first, second]}.items():
    with served(gguf, "-np", "1") as address:
        for each in before:
            answered(address, each, NUM)
        got = answered(address, third, NUM)
    right = greedy(model, third, NUM)
    print(f"{name}: {got}, should be {right}")
    is_wrong |= got != right
sys.exit(is_wrong)
