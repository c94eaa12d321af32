"""Bytes and operations are counted right: against the mask's definition, torch's own count of
operations, and published figures. How fast this machine is, no test asks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from batchproof.api import RowRecord, StepRecord
from batchproof.bench.roofline import Ceilings, ModelCosts, least_time, num_keys, pairs, step_costs
from batchproof.checks.masks import brute_force_mask
from batchproof.models.catalogue import load_model
from batchproof.models.embedded import EMBEDDED

H100 = Ceilings(copy_bytes_per_s=3.0e12, read_bytes_per_s=2.9e12, matmul_flop_per_s=798e12)
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


def on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def costs_of(model: PreTrainedModel) -> ModelCosts:
    costs = ModelCosts.of(model)
    assert costs is not None
    return costs


def step(*rows: tuple[int, int] | tuple[int, int, bool]) -> StepRecord:
    records = tuple(
        RowRecord(f"r{index}", row[0], row[1], row[2] if len(row) == 3 else True)
        for index, row in enumerate(rows)
    )
    return StepRecord(records, (), (), (), ())


@pytest.mark.parametrize(
    ("shape", "expected_ms"),
    [
        ("qwen3-0.6b", {1: 0.44, 64: 2.90}),
        ("llama-1b", {1: 0.84, 256: 3.69}),
        ("llama-8b", {1: 5.05, 64: 7.87}),
    ],
)
def test_a_decode_step_of_a_known_model_takes_what_others_computed(
    shape: str, expected_ms: dict[int, float]
) -> None:
    costs = costs_of(load_model(shape, torch.device("meta"), torch.bfloat16).model)
    for batch, ms in expected_ms.items():
        found = least_time([step(*[(1023, 1)] * batch)], costs, H100)
        assert found.least_s * 1e3 == pytest.approx(ms, abs=0.01)
        assert found.bound == "memory"


@given(st.integers(0, 12), st.integers(1, 12), st.none() | st.integers(1, 15))
def test_keys_and_pairs_are_those_of_the_masks_definition(
    context: int, queries: int, window: int | None
) -> None:
    row = RowRecord("a", context, queries, True)
    mask = brute_force_mask([row], window)
    assert pairs(row, window) == sum(map(sum, mask))
    assert num_keys(row, window) == sum(map(any, zip(*mask, strict=True)))


@pytest.mark.parametrize("name", ["gpt2-random", "llama-random", "mistral-window"])
@torch.inference_mode()
def test_the_operations_of_a_decode_step_are_those_torch_counts(name: str) -> None:
    model = EMBEDDED[name].build()
    model.set_attn_implementation("eager")
    context = 4  # within the window: torch counts what a mask hides as well
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.arange(context)[None], past_key_values=cache, use_cache=True)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.tensor([[7]]), past_key_values=cache, use_cache=True)
    _, flop = step_costs(step((context, 1)).rows, costs_of(model))
    # Beside ours, torch counts the product that makes RoPE's angles.
    assert flop <= counter.get_total_flops() <= 1.01 * flop


def test_steps_add_up_and_the_larger_side_of_each_binds() -> None:
    costs = costs_of(on_meta(LlamaConfig(**SMALL)))
    decode, prefill = step((10, 1)), step((0, 4000))
    machine = Ceilings(copy_bytes_per_s=0.8e9, read_bytes_per_s=1e9, matmul_flop_per_s=1e10)
    alone = [least_time([each], costs, machine) for each in (decode, prefill)]
    assert [each.bound for each in alone] == ["memory", "compute"]
    both = least_time([decode, prefill], costs, machine)
    assert both.least_s == pytest.approx(sum(each.least_s for each in alone))
    assert both.bytes == sum(each.bytes for each in alone)
    assert both.flop == sum(each.flop for each in alone)
    assert both.bound == "compute"
    assert least_time([], costs, machine).least_s == 0.0


def test_every_weight_is_read_once_and_only_where_it_is_used() -> None:
    """Of an untied embedding, the rows fed; a chunk that samples nothing spares the head."""
    untied, tied = (on_meta(LlamaConfig(**SMALL, tie_word_embeddings=tie)) for tie in (False, True))
    costs, costs_tied = costs_of(untied), costs_of(tied)
    table_bytes = 4 * 96 * 32
    kv_bytes = 3 * costs.kv_bytes_per_token  # read as much as written: there is no context
    whole = 4 * untied.num_parameters() - table_bytes + 3 * 4 * 32 + 2 * kv_bytes
    assert step_costs(step((0, 3)).rows, costs)[0] == whole
    assert costs_tied.body_bytes + costs_tied.head_bytes == 4 * tied.num_parameters()
    sampled, chunk = (step_costs(step((0, 3, last)).rows, costs_tied) for last in (True, False))
    assert (sampled[0] - chunk[0], sampled[1] - chunk[1]) == (table_bytes, 2 * 96 * 32)
    full, windowed = (
        costs_of(on_meta(MistralConfig(**SMALL, sliding_window=window))) for window in (None, 8)
    )
    long, short = step((100, 1)).rows, step((3, 1)).rows
    assert step_costs(short, full) == step_costs(short, windowed)
    spared = step_costs(long, full)[0] - step_costs(long, windowed)[0]
    assert spared == (101 - 8) * full.kv_bytes_per_token


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**SMALL, num_local_experts=4),
        MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=1),
        LlamaConfig(**SMALL, attention_chunk_size=16),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_whose_work_is_not_so_simple_is_not_counted(config: PreTrainedConfig) -> None:
    assert ModelCosts.of(on_meta(config)) is None
