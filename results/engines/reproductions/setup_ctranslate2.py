"""Tiny models with random weights, converted, and their greedy answers. Words: t0 to t255."""

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


def answered(generator: ctranslate2.Generator, prompts: list[list[int]], num: int, **more: object) -> list[list[int]]:
    """Returns `num` tokens for each prompt of one batch."""
    words = [[f"t{token}" for token in prompt] for prompt in prompts]
    options = {"max_length": num, "end_token": [], "include_prompt_in_result": False, **more}
    return [each.sequences_ids[0] for each in generator.generate_batch(words, **options)]
