"""Continuous batching of transformers drops attention softcapping (`paged|eager`): Gemma-2 gets other
tokens.

Random weights; a cap of 2 stands for one that the scores reach.
"""

import torch
from transformers import ContinuousBatchingConfig, Gemma2Config, Gemma2ForCausalLM, GenerationConfig
from setup_greedy import greedy

NUM_TOKENS = 8
PROMPTS = [[5, 17, 40, 3, 66], [9, 2, 71, 30, 12, 55, 8, 41, 20], [33]]

torch.manual_seed(0)
config = Gemma2Config(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=64,
    attn_logit_softcapping=2.0, final_logit_softcapping=None, max_position_embeddings=128,
    bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.2,
    tie_word_embeddings=False, attn_implementation="eager",
)
model = Gemma2ForCausalLM(config).eval()
right = [greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
outputs = model.generate_batch(
    PROMPTS,
    generation_config=GenerationConfig(do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1),
    continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64),
)
given = [output.generated_tokens for output in outputs.values()]
for layer in model.model.layers:
    layer.self_attn.attn_logit_softcapping = None
uncapped = [greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]

for prompt, *answers in zip(PROMPTS, right, given, uncapped):
    print("prompt", prompt)
    for name, answer in zip(("one by one", "generate_batch", "one by one, cap removed"), answers):
        print(f"  {name:24}", answer)
is_wrong = given != right and given == uncapped
print("REPRODUCED: generate_batch answers as if the model had no softcap" if is_wrong else "not reproduced")
raise SystemExit(is_wrong)
