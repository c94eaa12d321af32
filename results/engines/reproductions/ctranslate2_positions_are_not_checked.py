"""CTranslate2 4.8.5: more tokens than the model has positions are answered."""

import sys
import tempfile

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter

shape = {"vocab_size": 256, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 2}
special = {"num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.2}
words = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t0")
is_answered = False
for config in (transformers.LlamaConfig(**shape, **special, intermediate_size=128), transformers.GPT2Config(**shape, **special)):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        vocabulary = {f"t{i}": i for i in range(256)}
        transformers.GPT2Tokenizer(vocab=vocabulary, merges=[], **words).save_pretrained(folder)
        TransformersConverter(folder).convert(f"{folder}/converted")
        generator = ctranslate2.Generator(f"{folder}/converted", compute_type="float32")
    for num_prompt, cap in ((60, 4), (60, 40), (100, 4)):
        prompts = [["t1", "t2", "t3"], [f"t{i + 1}" for i in range(num_prompt)]]
        try:
            results = generator.generate_batch(prompts, max_length=cap, end_token=[], include_prompt_in_result=False)
            told = f"answers of {[len(each.sequences_ids[0]) for each in results]} tokens"
            is_answered |= num_prompt + cap > 65  # the last token of an answer is never fed
        except (RuntimeError, ValueError) as error:
            told = f"raised: {error}"
        print(f"{type(config).__name__}, 64 positions, prompts of 3 and {num_prompt}, max_length {cap}: {told}")
sys.exit(is_answered)
