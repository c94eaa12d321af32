"""A tokenizer: a pipeline with a draft compares those, whatever they are, and a grammar is followed by the
texts of its tokens. Prompts are token ids."""

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.BPE({"a": 0, "aa": 1, "?": 2}, [("a", "a")], unk_token="?"))


def add_tokenizer(folder: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?")
    converted = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), converted):
        ov.save_model(model, f"{folder}/openvino_{name}.xml")
