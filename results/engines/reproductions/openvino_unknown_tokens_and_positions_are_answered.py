"""openvino-genai 2026.4.1: token ids and positions that the model lacks are answered."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

limits = genai.SchedulerConfig()
limits.num_kv_blocks = 40
pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")


def answer(prompt: list[int], cap: int) -> list[int] | None:
    """None: refused."""
    settings = genai.GenerationConfig(max_new_tokens=cap, ignore_eos=True, eos_token_id=0)
    try:
        (result,) = pipe.generate([ov.Tensor(np.array([prompt], dtype=np.int64))], [settings])
    except (RuntimeError, ValueError):
        return None
    return result.m_generation_ids[0]


wrong = False
for prompt in ([1, 256, 2], [1, -1], [1, 10**9, 2], [1, 2**40, 2]):
    got = answer(prompt, 3)
    print(f"prompt {prompt}: {'refused' if got is None else f'answered {got}'}, should be refused")
    wrong |= got is not None
got = answer(np.random.RandomState(0).randint(1, 256, 250).tolist(), 20) or []
print(f"250 tokens and a cap of 20: {len(got)} tokens, should be refused or end after 7")
wrong |= len(got) > 7  # the last token of an answer is never fed
sys.exit(wrong)
