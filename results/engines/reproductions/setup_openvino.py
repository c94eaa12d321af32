"""A tiny GPT-2 with random weights, exported to `folder`."""

import tempfile

import torch
from optimum.exporters.openvino import export_from_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name
export_from_model(GPT2LMHeadModel(config).eval(), output=folder, task="text-generation-with-past", stateful=True)
