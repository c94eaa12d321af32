"""Mends what would end every request of a process, so that what lies behind it is judged.

A row whose prompt is not fed to its end is sampled as well, and the token is dropped: its generator
must take the draw back. vLLM does so by the offset of the generator, which torch's on a CPU lacks
(results/engines/reproductions/vllm_seed_in_an_unfinished_prompt.py). Here its state is restored.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def guard() -> None:
    """Mends it for all engines of this process."""
    sample, keep_books = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync

    def sampled(runner: Any, *args: Any, **kwargs: Any) -> Any:
        dropped = runner.discard_request_mask.np
        unfinished = [each for row, each in runner.input_batch.generators.items() if dropped[row]]
        states = [each.get_state() for each in unfinished]
        output = sample(runner, *args, **kwargs)
        for generator, state in zip(unfinished, states, strict=True):
            generator.set_state(state)
        return output

    def kept_books(runner: Any, *args: Any, **kwargs: Any) -> Any:
        generators, runner.input_batch.generators = runner.input_batch.generators, {}
        try:
            return keep_books(runner, *args, **kwargs)
        finally:
            runner.input_batch.generators = generators

    GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync = sampled, kept_books
