"""openvino-genai 2026.4.1: with dynamic_split_fuse, the default, max_num_seqs limits nothing."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

PROMPT = np.array([[1, 2, 3]], dtype=np.int64)
SETTINGS = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)


def scheduled(split: bool) -> list[int]:
    """Of four requests, how many are in each step."""
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks = 20
    limits.max_num_seqs = 1
    limits.dynamic_split_fuse = split
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")
    # A handle that is dropped cancels its request.
    handles = [pipe.add_request(number, ov.Tensor(PROMPT), SETTINGS) for number in range(4)]
    counts = []
    while pipe.has_non_finished_requests():
        pipe.step()
        counts.append(pipe.get_metrics().scheduled_requests)
    assert all(handle.get_status() == genai.GenerationStatus.FINISHED for handle in handles)
    return counts


got = scheduled(True)
print(f"max_num_seqs 1, with dynamic_split_fuse: {got} requests in the steps, should be 1 at most")
print(f"max_num_seqs 1, without: {scheduled(False)}")
sys.exit(max(got) > 1)
