"""Continuous batching of transformers takes models it cannot serve, and answers nonsense.

Of the 189 types in 5.23's causal-LM mapping 35 answer wrongly (tiny random models); six are below.
"""

import torch
from transformers import (
    AutoModelForCausalLM, BloomConfig, CodeGenConfig, ContinuousBatchingConfig, GenerationConfig, GPTJConfig,
    GPTNeoConfig, MptConfig, OpenAIGPTConfig,
)
from setup_greedy import greedy

NUM_TOKENS = 6
PROMPTS = [[5, 17, 40, 3, 66], [9, 2, 71, 30, 12, 55, 8, 41, 20], [33, 4]]
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS = [
    GPTJConfig(vocab_size=96, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=128, **NO_IDS),
    GPTNeoConfig(vocab_size=96, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global"], 2]],
                 max_position_embeddings=128, **NO_IDS),
    BloomConfig(vocab_size=96, hidden_size=64, n_layer=2, n_head=4, **NO_IDS),
    MptConfig(vocab_size=96, d_model=64, n_layers=2, n_heads=4, max_seq_len=128, **NO_IDS),
    CodeGenConfig(vocab_size=96, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=128, **NO_IDS),
    OpenAIGPTConfig(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, **NO_IDS),
]

wrong = []
for config in CONFIGS:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    right = [greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    outputs = model.generate_batch(
        PROMPTS,
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64),
    )
    given = [output.generated_tokens for output in outputs.values()]
    errors = [output.error for output in outputs.values() if output.error]
    print(f"{type(model).__name__}: errors {errors or 'none'}")
    for name, answers in (("one by one    ", right), ("generate_batch", given)):
        print("  ", name, answers)
    wrong += [type(model).__name__] if given != right and not errors else []
print(f"REPRODUCED: answered wrongly, no error: {', '.join(wrong)}" if wrong else "not reproduced")
raise SystemExit(bool(wrong))
