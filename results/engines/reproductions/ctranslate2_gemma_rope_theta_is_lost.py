"""CTranslate2 4.8.5: a Gemma of transformers 5 is converted with rope_theta 10000, whatever it has.

Exit status 1: reproduced. transformers 5 keeps rope_theta in config.rope_parameters. `GemmaLoader` in
the released ctranslate2/converters/transformers.py reads config.rope_theta, which is not there, and
falls back to 10000; the loaders of Llama and others use `get_rotary_params`, which finds it. An answer
is "explained" if transformers gives it too with 10000.
"""

import sys
import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.2}


def tiny(config_class: type, theta: float) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": theta}
    config = config_class(rope_parameters=rope, **shape, **heads)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def converted(model: transformers.PreTrainedModel) -> ctranslate2.Generator:
    vocabulary = {f"t{i}": i for i in range(256)}
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t0")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        transformers.GPT2Tokenizer(vocab=vocabulary, merges=[], **special).save_pretrained(folder)
        TransformersConverter(folder).convert(f"{folder}/converted")
        return ctranslate2.Generator(f"{folder}/converted", compute_type="float32")


def greedy(model: transformers.PreTrainedModel, prompt: list[int], num: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


prompt = [9, 20, 31, 42, 53, 64, 75]
words = [f"t{token}" for token in prompt]
is_wrong = False
for config_class in (transformers.LlamaConfig, transformers.GemmaConfig):
    for theta in (10000.0, 50.0):
        model = tiny(config_class, theta)
        right = greedy(model, prompt, 10)
        (result,) = converted(model).generate_batch(
            [words], include_prompt_in_result=False, max_length=10, end_token=[]
        )
        (got,) = result.sequences_ids
        told = "right" if got == right else "wrong"
        if got != right and got == greedy(tiny(config_class, 10000.0), prompt, 10):
            told += ", explained"
        print(f"{config_class.__name__}, rope_theta {theta}: {got}, should be {right} ({told})")
        is_wrong |= got != right
sys.exit(is_wrong)
