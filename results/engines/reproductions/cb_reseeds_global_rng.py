"""A greedy `generate_batch` of transformers reseeds torch's global generator, and a seed in its config
rewinds whatever else draws from it: dropout, shuffling, sampling elsewhere in the process repeat
themselves."""

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(
    LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4)
).eval()
greedy = GenerationConfig(do_sample=False, max_new_tokens=2, eos_token_id=-1)


def drawn_after(callers_seed, **config):
    """Three numbers, drawn after a greedy call between two draws of the caller's."""
    torch.manual_seed(callers_seed)
    torch.rand(1)
    if config:
        model.generate_batch([[1, 2, 3]], greedy, ContinuousBatchingConfig(num_blocks=4, max_batch_tokens=64, **config))
    return [round(x, 4) for x in torch.rand(3).tolist()]


print("caller's seed 1, no call           ", undisturbed := drawn_after(1))
print("caller's seed 1, greedy call       ", unseeded := drawn_after(1, seed=None))
print("caller's seed 1, call with seed 42 ", first := drawn_after(1, seed=42))
print("caller's seed 2, call with seed 42 ", second := drawn_after(2, seed=42))
is_reproduced = unseeded != undisturbed and first == second
print("REPRODUCED" if is_reproduced else "not reproduced")
raise SystemExit(is_reproduced)
