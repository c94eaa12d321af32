"""A tokenizer: a pipeline with a draft compares those, whatever they are. Prompts are token ids."""

import openvino as ov
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

words = Tokenizer(models.BPE({"a": 0, "aa": 1, "?": 2}, [("a", "a")], unk_token="?"))


def add_tokenizer(folder: str) -> None:
    tokenizer = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?"))
    ov.save_model(tokenizer, f"{folder}/openvino_tokenizer.xml")
