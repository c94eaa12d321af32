"""openvino-genai 2026.4.1: behind a min_p, top_p keeps tokens that it excludes.

The model has constant logits: tokens 0 to 3 have the probabilities 0.4, 0.3, 0.2 and 0.1. A min_p of
0.6 leaves 0 and 1, as 4/7 and 3/7; of these token 0 alone reaches a top_p of 0.5.
"""

import tempfile

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from setup_openvino_constant import export

with tempfile.TemporaryDirectory() as folder:
    export(folder, torch.tensor([0.4, 0.3, 0.2, 0.1, *[1e-9] * 4]).log())
    pipe = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU")
    handles = []
    for seed in range(100):
        settings = genai.GenerationConfig(max_new_tokens=1, ignore_eos=True, eos_token_id=7)
        settings.do_sample, settings.rng_seed = True, seed
        settings.min_p, settings.top_p = 0.6, 0.5
        handles.append(pipe.add_request(seed, ov.Tensor(np.array([[5]])), settings))
    while pipe.has_non_finished_requests():
        pipe.step()
drawn = [handle.read_all()[0].generated_ids[0] for handle in handles]
print(f"drawn: {({token: drawn.count(token) for token in sorted(set(drawn))})}, should be token 0 alone")
raise SystemExit(set(drawn) != {0})
