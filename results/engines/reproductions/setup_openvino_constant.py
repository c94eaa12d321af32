"""Models whose logits are the same whatever they are fed, exported to a folder."""

import torch
from optimum.exporters.openvino import export_from_model
from transformers import GPT2Config, GPT2LMHeadModel


def export(folder: str, logits: torch.Tensor) -> None:
    config = GPT2Config(vocab_size=8, n_positions=64, n_embd=8, n_layer=1, n_head=1, tie_word_embeddings=False)
    model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    model.transformer.ln_f.weight.zero_()
    model.transformer.ln_f.bias.copy_(torch.eye(8)[0])
    model.lm_head.weight.zero_()
    model.lm_head.weight[:, 0] = logits
    export_from_model(model, output=folder, task="text-generation-with-past", stateful=True)
