"""openvino-genai 2026.4.1: with a draft model, sampled tokens do not have the model's probabilities.

The logits of model and draft are constant: the model takes token 0 with probability 0.8, the draft with
0.2.
"""

import math
import tempfile

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from setup_openvino_constant import export
from setup_openvino_tokenizer import add_tokenizer

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def share_of_token_0(folder: str, speculation: dict) -> float:
    """Its share of 4,000 sampled tokens: the standard deviation is below 0.008."""
    tokens: list[int] = []
    pipe = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU", F32 | speculation)
    for seed in range(200):
        settings = genai.GenerationConfig(max_new_tokens=20, ignore_eos=True, eos_token_id=7)
        settings.do_sample, settings.rng_seed, settings.top_k = True, seed, 0
        if speculation:
            settings.num_assistant_tokens = 3
            settings.max_ngram_size = 2 * ("prompt_lookup" in speculation)
        handle = pipe.add_request(seed, ov.Tensor(np.array([[5]])), settings)
        while pipe.has_non_finished_requests():
            pipe.step()
        tokens += handle.read_all()[0].generated_ids
    return tokens.count(0) / len(tokens)


with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as other:
    for folder, probability in ((model, 0.8), (other, 0.2)):
        likely = [math.log(probability), math.log(1 - probability)]  # of tokens 0 and 1; no other is drawn
        export(folder, torch.tensor([*likely, *[-100.0] * 6]))
        add_tokenizer(folder)
    shares = {"alone": share_of_token_0(model, {})}
    shares["prompt lookup"] = share_of_token_0(model, {"prompt_lookup": True})
    for name, folder in (("itself as draft", model), ("the other as draft", other)):
        shares[name] = share_of_token_0(model, {"draft_model": genai.draft_model(folder, "CPU", **F32)})
for name, share in shares.items():
    print(f"{name}: token 0 has a share of {share:.3f}, should be 0.800")
raise SystemExit(any(abs(share - 0.8) > 0.05 for share in shares.values()))
