"""Mends what ends or spoils requests of any test, so that what lies behind it is judged.

* A row whose prompt is not fed to its end is sampled as well, and the token is dropped: its generator
  must take the draw back. vLLM does so by the offset of the generator, which torch's on a CPU lacks
  (results/engines/reproductions/vllm_seed_in_an_unfinished_prompt.py). Here its state is restored.
* The parameters of drafted tokens are written to a copy that nobody reads, and what happens to lie in
  memory is taken for them (results/engines/reproductions/vllm_parameters_of_drafts_are_not_written.py).
* A prompt of which one token is left is padded as if it had drafts, and waits for so much room, for
  ever if a step is shorter
  (results/engines/reproductions/vllm_last_token_behind_a_prefix_waits_for_ever.py). Here it is padded
  only if a step has that room for each slot.
* The token behind the last draft is sampled as if no draft counted for `min_tokens`
  (results/engines/reproductions/vllm_min_tokens_behind_right_drafts.py).
* A token without an adapter has the number -1, and gets that in the last slot
  (results/engines/reproductions/vllm_the_last_adapter_for_all_without.py). Here it gets none.
* The numbers of adapters of a step's samples are read for the tokens of prompts whose logprobs are
  asked for, and raise where they are not as many
  (results/engines/reproductions/vllm_prompt_logprobs_end_the_engine_beside_adapters.py). Here the head
  is not adapted then; no adapter of the suite is for the head.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.utils import cpu_triton_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def guard() -> None:
    """Mends all for all engines of this process; before the first is built."""
    _take_draws_back()
    _pad_what_fits()
    _count_right_drafts()
    _leave_tokens_without_adapter()
    _leave_prompts_to_the_model()
    cpu_triton_utils._expand_kernel_impl = _expand


def _take_draws_back() -> None:
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


def _pad_what_fits() -> None:
    make = Scheduler.__init__

    def made(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        make(scheduler, *args, **kwargs)
        num_drafts = scheduler.num_spec_tokens
        num_slots = scheduler.max_num_running_reqs
        if (1 + num_drafts) * num_slots > scheduler.max_num_scheduled_tokens:
            scheduler.dynamic_sd_lookup = [num_drafts] * (num_slots + 1)  # as many drafts, no padding

    Scheduler.__init__ = made


def _count_right_drafts() -> None:
    verify, exclude = RejectionSampler.forward, MinTokensLogitsProcessor.apply
    nums: list[list[int]] = []  # drafts of each row, while a step is verified

    def verified(sampler: Any, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        nums.append(metadata.num_draft_tokens)
        try:
            return verify(sampler, metadata, *args, **kwargs)
        finally:
            nums.clear()

    def excluded(processor: Any, logits: torch.Tensor) -> torch.Tensor:
        if not nums:
            return exclude(processor, logits)
        for row, (least, tokens, stops, _) in processor.min_toks.items():
            if len(tokens) + nums[0][row] < least:
                logits[row, list(stops)] = -torch.inf
        return logits

    RejectionSampler.forward, MinTokensLogitsProcessor.apply = verified, excluded


def _leave_tokens_without_adapter() -> None:
    shrink = lora_ops.bgmv_shrink

    def shrunk(inputs: torch.Tensor, weights: Any, out: Any, numbers: torch.Tensor, *rest: Any) -> None:
        shrink(inputs * (numbers >= 0)[: len(inputs), None], weights, out, numbers, *rest)

    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = shrunk


def _leave_prompts_to_the_model() -> None:
    add = punica_cpu.PunicaWrapperCPU.add_lora_logits

    def added(
        wrapper: Any, logits: torch.Tensor, inputs: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        is_of_prompts = len(wrapper.sampler_indices) not in (1, len(inputs))
        return None if is_of_prompts else add(wrapper, logits, inputs, *args, **kwargs)

    punica_cpu.PunicaWrapperCPU.add_lora_logits = added


def _expand(
    output: torch.Tensor,
    given: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    *_: int,
) -> None:
    lengths = torch.diff(ends, prepend=ends.new_zeros(1))
    values = torch.where(given == replace_from, torch.full_like(given, replace_to), given)
    output.copy_(values.repeat_interleave(lengths))
