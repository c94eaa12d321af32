"""Tiny models with random weights, converted. Their words are t0 to t255."""

import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter


def tiny(config_class: type, **settings: object) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    shape = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = config_class(initializer_range=0.2, **shape, **settings)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def converted(model: transformers.PreTrainedModel, unk_token: str | None = "t0") -> ctranslate2.Generator:
    special = {"bos_token": "t0", "eos_token": "t0", "pad_token": "t0", "unk_token": unk_token}
    tokenizer = transformers.GPT2Tokenizer({f"t{i}": i for i in range(256)}, merges=[], **special)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        TransformersConverter(folder).convert(f"{folder}/converted")
        return ctranslate2.Generator(f"{folder}/converted", compute_type="float32")
