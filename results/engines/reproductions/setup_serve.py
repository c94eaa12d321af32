"""A tiny GPT-2 with random weights, and the command that serves it."""

import torch
from setup_server import folder
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
shape = {"vocab_size": 256, "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
command = ["transformers.cli.transformers", "serve", folder, "--device", "cpu"]
command += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "256"]
