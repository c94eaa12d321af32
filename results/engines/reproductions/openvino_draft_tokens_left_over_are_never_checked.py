"""openvino-genai 2026.4.1: draft tokens that do not fit into a step are never checked, and are
answered.

The model is its own draft, so that every proposal is right.
"""

import sys
import tempfile

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.exporters.openvino import export_from_model
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
CASES = {  # prompts, their length, max_num_batched_tokens, num_kv_blocks; 256 and 0 are the defaults
    "room for all": (3, 30, 256, 0),
    "long prompts": (3, 200, 256, 0),
    "many requests": (60, 3, 256, 0),
    "small budget": (8, 3, 8, 0),
    "small pool": (3, 30, 256, 4),
}


def answers(folder: str, case: str, drafted: bool) -> list[list[int]]:
    count, length, budget, blocks = CASES[case]
    limits = genai.SchedulerConfig()
    limits.max_num_batched_tokens, limits.num_kv_blocks = budget, blocks
    draft = {"draft_model": genai.draft_model(folder, "CPU", **F32)} if drafted else {}
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU", F32 | draft)
    settings = genai.GenerationConfig(max_new_tokens=12, ignore_eos=True, eos_token_id=0)
    if drafted:
        settings.num_assistant_tokens = 6
    prompts = np.random.RandomState(0).randint(1, 256, (count, 1, length))
    handles = [pipe.add_request(i, ov.Tensor(prompt), settings) for i, prompt in enumerate(prompts)]
    while pipe.has_non_finished_requests():
        pipe.step()
    return [handle.read_all()[0].generated_ids for handle in handles]


torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2
)
model = GPT2LMHeadModel(config).eval()
# A pipeline with a draft compares the tokenizers, whatever they are: prompts here are token ids.
words = Tokenizer(models.BPE({"a": 0, "aa": 1, "?": 2}, [("a", "a")], unk_token="?"))
wrong = False
with tempfile.TemporaryDirectory() as folder:
    export_from_model(model, output=folder, task="text-generation-with-past", stateful=True)
    tokenizer = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="?"))
    ov.save_model(tokenizer, f"{folder}/openvino_tokenizer.xml")
    for case in CASES:
        right, got = answers(folder, case, drafted=False), answers(folder, case, drafted=True)
        bad = [pair for pair in zip(got, right, strict=True) if pair[0] != pair[1]]
        print(f"{case}: {len(bad)} of {len(got)} answers are wrong")
        for each, should_be in bad[:1]:
            print(f"    {each}\n    should be\n    {should_be}")
        wrong |= bool(bad)
sys.exit(wrong)
