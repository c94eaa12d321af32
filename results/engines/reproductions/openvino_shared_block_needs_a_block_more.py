"""openvino-genai 2026.4.1: prefix caching without dynamic_split_fuse needs a block more than the
pool has."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
SETTINGS = genai.GenerationConfig(max_new_tokens=1, ignore_eos=True, eos_token_id=0)


def ends(prompts: list[list[int]], prefix_caching: bool) -> list[str]:
    """Returns how the requests end that ask for these prompts a second time."""
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks, limits.max_num_seqs, limits.dynamic_split_fuse = 1, 1, False
    limits.enable_prefix_caching = prefix_caching
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU", F32)
    handles = []
    for call in range(2):
        for number, prompt in enumerate(prompts):
            tokens = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipe.add_request(2 * call + number, tokens, SETTINGS))
        try:
            while pipe.has_non_finished_requests():
                pipe.step()
        except RuntimeError as error:
            return [f"step raised {str(error).split(' failed')[0]}"] * 2
    return [str(handle.get_status()).removeprefix("GenerationStatus.") for handle in handles[2:]]


is_wrong = False
for prompts in ([[197], [197, 215]], [[5, 6], [5, 6]]):
    got, right = ends(prompts, True), ends(prompts, False)
    print(f"{prompts}: {got}, without prefix caching {right}")
    is_wrong |= got != right
sys.exit(is_wrong)
