"""openvino-genai 2026.4.1: presence and frequency penalties raise a logit that is negative.

The model has constant logits: token k has -1 - k / 2. With a presence_penalty of 1.2, token 0 falls to
-2.2 once it is produced, so 1 is next, and then 2.
"""

import tempfile

import numpy as np
import openvino as ov
import openvino_genai as genai
import torch
from setup_openvino_constant import export

with tempfile.TemporaryDirectory() as folder:
    export(folder, -1 - torch.arange(8) / 2)
    pipe = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU")
    handles = {}
    for number, penalty in enumerate(("presence_penalty", "frequency_penalty")):
        settings = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=7)
        setattr(settings, penalty, 1.2)
        handles[penalty] = pipe.add_request(number, ov.Tensor(np.array([[5]])), settings)
    while pipe.has_non_finished_requests():
        pipe.step()
got = {penalty: handle.read_all()[0].generated_ids for penalty, handle in handles.items()}
for penalty, tokens in got.items():
    print(f"{penalty} 1.2: {tokens}, should be [0, 1, 2]")
raise SystemExit(any(tokens != [0, 1, 2] for tokens in got.values()))
