"""openvino-genai 2026.4.1: generate() returns what was made before the cache was full as an answer."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

CAP = 100
SETTINGS = genai.GenerationConfig(max_new_tokens=CAP, ignore_eos=True, eos_token_id=0)
PROMPTS = [[1, 2, 3], [*range(1, 100)]]

limits = genai.SchedulerConfig()
limits.num_kv_blocks = 2  # 64 tokens
pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")
silent = False
for prompt in PROMPTS:
    try:
        (result,) = pipe.generate([ov.Tensor(np.array([prompt], dtype=np.int64))], [SETTINGS])
    except RuntimeError as error:
        print(f"prompt of {len(prompt)} tokens: raised, as it should:", error)
        continue
    length = sum(map(len, result.m_generation_ids))
    reason = result.finish_reasons[0].name
    status = getattr(result, "m_status", None)
    silent |= length < CAP and status != genai.GenerationStatus.IGNORED
    print(f"prompt of {len(prompt)} tokens: answer of {length} tokens, asked for {CAP}.")
    print(f"  Finish reason {reason}, m_status {status}; should raise, or have the status IGNORED.")
sys.exit(silent)
