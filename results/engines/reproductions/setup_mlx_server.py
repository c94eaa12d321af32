"""A tiny Llama with random weights, and the command that serves it."""

import transformers
from setup_mlx import HEADS, SHAPE, save
from setup_server import folder

save(transformers.LlamaConfig(**SHAPE, **HEADS, tie_word_embeddings=False, rope_theta=1e4, eos_token_id=0), folder)
command = ["mlx_lm", "server", "--model", folder]
